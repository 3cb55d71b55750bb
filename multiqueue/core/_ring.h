/* The ring: whose turn it is among many tails, by strict priority, then in turns by weight and cost. No lock, no element.
 *
 * Promise     1. Each operation costs O(1), however many tails there are, and O(log levels) where one begins or ends.
 *             2. Of two tails of a level, from the moment when both are in the ring: what they were served, by cost /
 *                weight, differs by at most 2 * D: one message each of the greatest cost / weight D that the level was
 *                charged. D is `least`, or what a tail was served in advance, if that is more.
 *             3. A tail that joins is served after at most one turn of each tail that is in its level.
 *             4. A tail that is out of the ring saves nothing up, and what it was served in advance stays charged.
 *
 * State       A level's tails form a circle of doubly linked *places*, read from `cursor`: first those that have their turn
 *             in this round still, then those that have had it or have joined since it began. `Place.round`, the round of
 *             the next turn, tells them apart. `Place.served` is all that a tail was served, by cost / weight. The *line*
 *             is how far this round serves each tail: a turn ends when `served` is at the line, or beyond it by the last
 *             message. `over` is the most by which a tail is beyond it. When the cursor meets a place of the next round,
 *             that round begins, and the line moves by `over`, or by `least` if that is more.
 *             The caller's lock guards it all.
 *
 * Invariants  Let V be the line, U that of the round before, and V' = V + max(over, least) that of the round after. Then
 *             (a) `served` is in [U, V] for a place that has its turn in this round and is not the cursor's;
 *             (b) `served` is in [V, V'] for a place of the next round.
 *             When a round begins, (b) becomes (a). A turn ends by a message that begins at V or below: at most
 *             cost / weight beyond V, and `over` remembers how far. A tail that joins is raised to V, or is beyond it by
 *             what it was served in advance, and raises `over` by that. So each turn serves one message at least, the
 *             cursor passes no place in vain, and no operation has a loop: that is promise 1.
 *
 * Bound       V' - V <= D, and a turn ends at most D beyond its line. Let j join in round r, at the line V, where i is already.
 *             1. i has had its turn in r. Then i stands before j in each later round, and began in [V, V + D].
 *                After a turn of i in round m, i is at most at V(m) + D, and j at least at V(m-1): i leads by
 *                V(m) + D - V(m-1) <= 2D. After a turn of j, j is at most at V(m) + D, and i at least at V(m), of
 *                which D at most came before: j leads by 2D at most.
 *             2. i has its turn in r still. Then j stands before i in each later round, and i began in [U, V]. After a
 *                turn of j in round m, j is at most at V(m) + D, and i at least at V(m-1): j leads by 2D at most. After
 *                a turn of i, i is at most at V(m) + D, and j at least at V(m); i began below V by D at most: i leads
 *                by 2D at most.
 *             Counted from any other moment, or from a `resume`, the same reasoning gives 3D. What a tail was served out
 *             of turn moves it beyond the line at once, and counts as served in advance.
 *
 * Numbers     `served` and `line` are doubles and grow: exact for whole numbers up to 2^53, and then to one part in 2^53.
 *             Costs, weights and `least` are between 1e-100 and 1e100, so no quotient is 0, and no sum is infinite before
 *             1e108 of them.
 *
 * Nesting     A place may stand for a whole ring: it is in its level while that ring has a tail, and what that tail is
 *             charged it is charged too, by its own weight. The bound holds on each level by itself.
 *
 * Source      Elastic round robin (Kanhere, Sethu, Parekh 2002), which needs no cost in advance; deficit round robin
 *             (Shreedhar, Varghese 1995). Virtual-time schedulers bound 2 with D of the two tails alone, in O(log n).
 */
#ifndef MULTIQUEUE_RING_H
#define MULTIQUEUE_RING_H

typedef struct Place {
    struct Place *next, *prev;    /* NULL: not in the ring */
    double served;                /* by cost / weight */
    long long round;              /* in which it has its next turn */
} Place;

typedef struct Level {
    long long priority;
    Place *cursor;                /* whose turn it is; NULL: nobody is here */
    double line, over;
    long long round;
    Py_ssize_t members;           /* in the ring or not: tails that name it */
} Level;

typedef struct Ring {
    Level **levels, **active;     /* by ascending priority: all, and those with a cursor. Both have room for all */
    Py_ssize_t n_levels, n_active, room;
    double least;                 /* what a round serves by cost / weight, at least */
} Ring;

/* ---- levels ----------------------------------------------------------------------------------------------------- */

static Py_ssize_t place_of(Level **levels, Py_ssize_t n, long long priority) {   /* the first that is not before it */
    Py_ssize_t low = 0, high = n;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (levels[middle]->priority < priority) low = middle + 1; else high = middle;
    }
    return low;
}
static void insert(Level **levels, Py_ssize_t *n, Level *l) {
    Py_ssize_t at = place_of(levels, *n, l->priority);
    if (at < *n) memmove(levels + at + 1, levels + at, (*n - at) * sizeof *levels);
    levels[at] = l;
    ++*n;
}
static void withdraw(Level **levels, Py_ssize_t *n, Level *l) {
    Py_ssize_t at = place_of(levels, *n, l->priority);
    if (at < --*n) memmove(levels + at, levels + at + 1, (*n - at) * sizeof *levels);
}
static Level *level_enter(Ring *r, long long priority) {   /* for one tail more; NULL: no memory */
    Py_ssize_t at = place_of(r->levels, r->n_levels, priority);
    if (at < r->n_levels && r->levels[at]->priority == priority) { r->levels[at]->members++; return r->levels[at]; }
    if (r->n_levels == r->room) {
        Py_ssize_t room = r->room ? r->room * 2 : 2;
        Level **levels = PyMem_Realloc(r->levels, room * sizeof *levels);
        if (levels) r->levels = levels;
        Level **active = levels ? PyMem_Realloc(r->active, room * sizeof *active) : NULL;
        if (!active) return NULL;
        r->active = active;
        r->room = room;
    }
    Level *l = PyMem_Calloc(1, sizeof *l);
    if (!l) return NULL;
    l->priority = priority;
    l->members = 1;
    insert(r->levels, &r->n_levels, l);
    return l;
}
static void level_leave(Ring *r, Level *l) {
    if (l && --l->members == 0) { withdraw(r->levels, &r->n_levels, l); PyMem_Free(l); }
}
static void ring_free(Ring *r) {
    for (Py_ssize_t i = 0; i < r->n_levels; i++) PyMem_Free(r->levels[i]);
    PyMem_Free(r->levels);
    PyMem_Free(r->active);
}

/* ---- turns ------------------------------------------------------------------------------------------------------ */

static inline Place *ring_due(const Ring *r) { return r->n_active ? r->active[0]->cursor : NULL; }

static inline void next_round(Ring *r, Level *l) {
    l->line += l->over > r->least ? l->over : r->least;
    l->over = 0;
    l->round++;
}
static inline void link_before(Place *p, Place *c) { p->prev = c->prev; p->next = c; c->prev->next = p; c->prev = p; }

/* Join at the end of the round; `p` is not in the ring. */
static inline void ring_join(Ring *r, Level *l, Place *p) {
    Place *c = l->cursor;
    double over = p->served - l->line;
    if (over < 0) p->served = l->line;
    else if (over > l->over) l->over = over;
    p->round = l->round + 1;
    if (c) link_before(p, c);
    else {
        p->next = p->prev = l->cursor = p;
        insert(r->active, &r->n_active, l);
        next_round(r, l);
    }
}
/* Join again after a pause: with a turn in this round still, next behind the one whose turn it is. */
static inline void ring_resume(Ring *r, Level *l, Place *p) {
    if (l->cursor && p->round == l->round && p->served <= l->line) link_before(p, l->cursor->next);
    else ring_join(r, l, p);
}
/* To another level, of the same ring; not in the ring. It takes along what it was served in advance. */
static inline void ring_move(Place *p, const Level *from, const Level *to) {
    p->served = to->line + (p->served > from->line ? p->served - from->line : 0);
    p->round = 0;
}
/* Leave; if it was its turn, it is now its follower's. */
static inline void ring_leave(Ring *r, Level *l, Place *p) {
    if (p->next == p) { l->cursor = NULL; withdraw(r->active, &r->n_active, l); }
    else {
        p->prev->next = p->next;
        p->next->prev = p->prev;
        if (l->cursor == p && (l->cursor = p->next)->round != l->round) next_round(r, l);
    }
    p->next = p->prev = NULL;
}
/* It was served: `step` is cost / weight. In its turn or out of it, in the ring or not. */
static inline void ring_charge(Ring *r, Level *l, Place *p, double step) {
    double over = (p->served += step) - l->line;
    if (over < 0) return;
    if (over > l->over && p->next) l->over = over;
    if (p->round != l->round) return;
    p->round++;                                 /* its turn is over */
    if (!p->next) return;
    if (l->cursor == p) l->cursor = p->next;
    else {                                      /* out of turn: to the end of the round */
        p->prev->next = p->next;
        p->next->prev = p->prev;
        link_before(p, l->cursor);
    }
    if (l->cursor->round != l->round) next_round(r, l);
}

#endif
