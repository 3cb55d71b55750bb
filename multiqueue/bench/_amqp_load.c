/* Load from C clients (librabbitmq), so that the server and not the client is what a benchmark measures.
 *
 *   load HOST PORT USER PASSWORD VHOST QUEUE WORK CONNECTIONS MESSAGES SIZE PERSISTENT PREFETCH EXCHANGE RATE \
 *        TENANTS KIND BACKLOG PID PARTS
 *
 * WORK is one of
 *   publish          publish, then one round trip, so that the server has taken everything
 *   confirm          publish with at most WINDOW unconfirmed messages
 *   consume          take what is there, acknowledged automatically
 *   publish-consume  both at once
 *   publish-ack      both at once, with PREFETCH and an acknowledgement for each message
 *   latency          as publish-consume, RATE messages a second on each connection, persistent ones with confirms
 *
 * Each side has CONNECTIONS connections, a thread each, number N with the queue QUEUE-N. MESSAGES and SIZE (bytes) are
 * those of one connection and part. EXCHANGE is empty, or the one that a single producer publishes to for all queues.
 * When all are connected, a line is read and one is printed for each of PARTS. It has the seconds until the last message
 * of the part, and the CPU seconds that the process PID (0: none) spent in them. The work latency adds the 50th and the
 * 99th percentile of the seconds from the call that publishes to the one that returns the message, and, with confirms, to
 * the one that returns the confirm.
 * With TENANTS above 0 messages name so many tenants in turn, in the header `tenant`; KIND is empty, or `quorum`, the
 * `x-queue-type` of the queues, or their `x-queue-kind`.
 * With BACKLOG above 0 so many messages are on each queue before the first part, and about as many all the while: the two
 * sides are at most APART messages apart.
 * Whatever a server refuses goes to standard error, with status 2.
 */

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#if __has_include(<rabbitmq-c/amqp.h>)
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp.h>
#include <amqp_tcp_socket.h>
#endif

enum { WINDOW = 100, LONGEST_NAME = 200, MOST_THREADS = 512, PATIENCE = 60, FRAME_MAX = 131072 };
enum { LONGEST_TENANT = 24 };
enum { FIRST = 100 }; /* messages of the work latency that are not counted */
enum { APART = 500, MOMENT = 20000 }; /* the latter in nanoseconds: a few messages */

static const char *host, *user, *password, *vhost, *queue, *exchange, *kind;
static int port, messages, size, persistent, prefetch, rate, tenants, backlog, pid, parts;
static int publishes, consumes, confirms, acknowledges, paced;
/* Of the work latency, `messages` of each connection: when each was sent, seconds to its delivery and to its confirm. */
static double *sent_at, *delivered, *confirmed_after;
static atomic_int ahead[MOST_THREADS]; /* messages of each connection: sent and not received, the backlog apart */
static pthread_barrier_t start;

static void fail(const char *doing) {
  fprintf(stderr, "%s failed\n", doing);
  exit(2);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static double cpu_of_server(void) {
  struct timespec time;
  if (pid == 0 || clock_gettime((clockid_t)((~(unsigned)pid << 3) | 2), &time) != 0) return NAN;
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* One side has one message more; it waits while it is too far ahead of the other. */
static void keep_abreast(atomic_int *ahead, int step) {
  if (backlog == 0) return;
  for (atomic_fetch_add(ahead, step); step * atomic_load(ahead) >= APART;) nanosleep(&(struct timespec){0, MOMENT}, NULL);
}

static void sleep_until(double moment) {
  double left = moment - now();
  if (left <= 0) return;
  struct timespec time = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
  nanosleep(&time, NULL);
}

static void check(const char *doing, amqp_rpc_reply_t reply) {
  if (reply.reply_type == AMQP_RESPONSE_NORMAL) return;
  fprintf(stderr, "%s: ", doing);
  if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD) {
    amqp_channel_close_t *method = reply.reply.decoded;
    fprintf(stderr, "%d %.*s\n", method->reply_code, (int)method->reply_text.len, (char *)method->reply_text.bytes);
  } else if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && reply.reply.id == AMQP_CONNECTION_CLOSE_METHOD) {
    amqp_connection_close_t *method = reply.reply.decoded;
    fprintf(stderr, "%d %.*s\n", method->reply_code, (int)method->reply_text.len, (char *)method->reply_text.bytes);
  } else {
    fprintf(stderr, "%s\n", amqp_error_string2(reply.library_error));
  }
  exit(2);
}

static void declare(amqp_connection_state_t connection, const char *name) {
  const char *key = strcmp(kind, "quorum") ? "x-queue-kind" : "x-queue-type";
  amqp_table_entry_t argument = {
      amqp_cstring_bytes(key), {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(kind)}};
  amqp_table_t arguments = {*kind ? 1 : 0, &argument};
  amqp_queue_declare(connection, 1, amqp_cstring_bytes(name), 0, persistent, 0, 0, arguments);
  check("queue.declare", amqp_get_rpc_reply(connection));
}

static amqp_connection_state_t connect_to(const char *name) {
  amqp_connection_state_t connection = amqp_new_connection();
  amqp_socket_t *socket = amqp_tcp_socket_new(connection);
  if (socket == NULL || amqp_socket_open(socket, host, port) != AMQP_STATUS_OK) fail("connecting");
  check("login", amqp_login(connection, vhost, 0, FRAME_MAX, 0, AMQP_SASL_METHOD_PLAIN, user, password));
  amqp_channel_open(connection, 1);
  check("channel.open", amqp_get_rpc_reply(connection));
  declare(connection, name);
  return connection;
}

static void disconnect(amqp_connection_state_t connection) {
  amqp_channel_close(connection, 1, AMQP_REPLY_SUCCESS);
  amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
  amqp_destroy_connection(connection);
}

/* The number that a frame confirms, or the one that was confirmed before. */
static uint64_t confirmed_by(const amqp_frame_t *frame, uint64_t confirmed) {
  if (frame->frame_type != AMQP_FRAME_METHOD || frame->payload.method.id != AMQP_BASIC_ACK_METHOD) fail("a confirm");
  const amqp_basic_ack_t *ack = frame->payload.method.decoded;
  return ack->delivery_tag > confirmed ? ack->delivery_tag : confirmed;
}

/* Read answers until at most `most` of the `sent` messages are unconfirmed; returns the highest confirmed number. */
static uint64_t wait_for_confirms(amqp_connection_state_t connection, uint64_t sent, uint64_t confirmed, uint64_t most) {
  while (sent - confirmed > most) {
    amqp_frame_t frame;
    amqp_maybe_release_buffers(connection);
    if (amqp_simple_wait_frame(connection, &frame) != AMQP_STATUS_OK) fail("waiting for a confirm");
    confirmed = confirmed_by(&frame, confirmed);
  }
  return confirmed;
}

/* Read answers until a moment, and note when each of the connection's messages, from `first` on, was confirmed. */
static uint64_t note_confirms(amqp_connection_state_t connection, double moment, int first, uint64_t confirmed) {
  double left;
  while ((left = moment - now()) > 0) {
    amqp_frame_t frame;
    struct timeval patience = {(time_t)left, (suseconds_t)((left - (double)(time_t)left) * 1e6)};
    amqp_maybe_release_buffers(connection);
    int status = amqp_simple_wait_frame_noblock(connection, &frame, &patience);
    if (status == AMQP_STATUS_TIMEOUT) break;
    if (status != AMQP_STATUS_OK) fail("waiting for a confirm");
    for (uint64_t highest = confirmed_by(&frame, confirmed); confirmed < highest; confirmed++)
      confirmed_after[first + (int)confirmed] = now() - sent_at[first + (int)confirmed];
  }
  return confirmed;
}

static void *producer(void *number) {
  char name[LONGEST_NAME];
  snprintf(name, sizeof name, "%s-%d", queue, (int)(intptr_t)number);
  amqp_connection_state_t connection = connect_to(name);
  amqp_bytes_t body = {(size_t)size, malloc((size_t)size)};
  memset(body.bytes, 'x', body.len);
  amqp_bytes_t to = amqp_cstring_bytes(exchange);
  amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = persistent ? 2 : 1};
  char tenant[LONGEST_TENANT];
  amqp_table_entry_t header = {amqp_cstring_bytes("tenant"), {.kind = AMQP_FIELD_KIND_UTF8}};
  if (tenants) {
    properties._flags |= AMQP_BASIC_HEADERS_FLAG;
    properties.headers = (amqp_table_t){1, &header};
  }
  if (confirms) {
    amqp_confirm_select(connection, 1);
    check("confirm.select", amqp_get_rpc_reply(connection));
  }
  uint64_t confirmed = 0;
  int first = (int)(intptr_t)number * messages;
  double began = 0;
  for (int sent = 1 - backlog; sent <= messages * parts; sent++) {
    if (sent == 1 && backlog) declare(connection, name); /* answered when the server has them */
    if (sent > 0 && sent % messages == 1 % messages) {
      pthread_barrier_wait(&start);
      began = now();
    }
    if (paced) {
      double due = began + (double)sent / rate;
      if (confirms) confirmed = note_confirms(connection, due, first, confirmed);
      sleep_until(due);
      sent_at[first + sent - 1] = now();
    }
    if (tenants) {
      snprintf(tenant, sizeof tenant, "tenant %d", (sent + backlog) % tenants);
      header.value.value.bytes = amqp_cstring_bytes(tenant);
    }
    if (amqp_basic_publish(connection, 1, to, amqp_cstring_bytes(name), 0, 0, &properties, body) < 0)
      fail("basic.publish");
    if (confirms && !paced)
      confirmed = wait_for_confirms(connection, (uint64_t)sent, confirmed, sent % messages ? WINDOW - 1 : 0);
    if (sent > 0) keep_abreast(&ahead[(intptr_t)number], 1);
    if (sent <= 0 || sent % messages) continue;
    while (paced && confirms && confirmed < (uint64_t)sent)
      confirmed = note_confirms(connection, now() + 1.0 / rate, first, confirmed);
    if (!confirms) declare(connection, name); /* answered when the server has all that came before */
    pthread_barrier_wait(&start);
  }
  disconnect(connection);
  free(body.bytes);
  return NULL;
}

static void *consumer(void *number) {
  char name[LONGEST_NAME];
  snprintf(name, sizeof name, "%s-%d", queue, (int)(intptr_t)number);
  amqp_connection_state_t connection = connect_to(name);
  if (acknowledges) {
    amqp_basic_qos(connection, 1, 0, (uint16_t)prefetch, 0);
    check("basic.qos", amqp_get_rpc_reply(connection));
  }
  for (int received = 0; received < messages * parts; received++) {
    if (received % messages == 0) pthread_barrier_wait(&start);
    if (received == 0) {
      amqp_basic_consume(
          connection, 1, amqp_cstring_bytes(name), amqp_empty_bytes, 0, !acknowledges, 0, amqp_empty_table);
      check("basic.consume", amqp_get_rpc_reply(connection));
    }
    amqp_envelope_t envelope;
    struct timeval patience = {PATIENCE, 0};
    amqp_maybe_release_buffers(connection);
    check("a delivery", amqp_consume_message(connection, &envelope, &patience, 0));
    int place = (int)(intptr_t)number * messages + received; /* they come in the order in which they were sent */
    if (paced) delivered[place] = now() - sent_at[place];
    if (acknowledges) amqp_basic_ack(connection, 1, envelope.delivery_tag, 0);
    amqp_destroy_envelope(&envelope);
    keep_abreast(&ahead[(intptr_t)number], -1);
    if ((received + 1) % messages) continue;
    if (acknowledges) declare(connection, name); /* answered when the server has all acknowledgements */
    pthread_barrier_wait(&start);
  }
  disconnect(connection);
  return NULL;
}

static int compare(const void *one, const void *other) {
  double difference = *(const double *)one - *(const double *)other;
  return (difference > 0) - (difference < 0);
}

/* A connection's first messages are left out: its consumer may come after them. */
static void print_percentiles(double *seconds, int connections) {
  int skipped = messages > 2 * FIRST ? FIRST : 0, counted = 0;
  for (int number = 0; number < connections; number++)
    for (int place = skipped; place < messages; place++) seconds[counted++] = seconds[number * messages + place];
  qsort(seconds, (size_t)counted, sizeof *seconds, compare);
  printf(" %.6f %.6f", seconds[counted / 2], seconds[(int)((double)counted * 0.99)]);
}

int main(int count, char **given) {
  if (count != 20) {
    fprintf(stderr, "load HOST PORT USER PASSWORD VHOST QUEUE WORK CONNECTIONS MESSAGES SIZE PERSISTENT PREFETCH EXCHANGE RATE TENANTS KIND BACKLOG PID PARTS\n");
    return 2;
  }
  host = given[1], port = atoi(given[2]), user = given[3], password = given[4], vhost = given[5], queue = given[6];
  const char *work = given[7];
  int connections = atoi(given[8]);
  messages = atoi(given[9]), size = atoi(given[10]), persistent = atoi(given[11]), prefetch = atoi(given[12]), exchange = given[13], rate = atoi(given[14]);
  tenants = atoi(given[15]), kind = given[16], backlog = atoi(given[17]), pid = atoi(given[18]), parts = atoi(given[19]);
  paced = strcmp(work, "latency") == 0;
  confirms = strcmp(work, "confirm") == 0 || (paced && persistent);
  acknowledges = strcmp(work, "publish-ack") == 0;
  publishes = confirms || paced || strncmp(work, "publish", 7) == 0;
  consumes = strstr(work, "consume") != NULL || acknowledges || paced;
  sent_at = calloc((size_t)connections * (size_t)messages, 3 * sizeof *sent_at);
  delivered = sent_at + connections * messages, confirmed_after = delivered + connections * messages;
  int producers = !publishes ? 0 : *exchange ? 1 : connections, threads = producers + connections * consumes;
  if (threads < 1 || threads > MOST_THREADS) fail("choosing a work and connections");
  pthread_t running[MOST_THREADS];
  pthread_barrier_init(&start, NULL, (unsigned)threads + 1);
  int begun = 0;
  for (int number = 0; number < connections; number++) {
    if (number < producers) pthread_create(&running[begun++], NULL, producer, (void *)(intptr_t)number);
    if (consumes) pthread_create(&running[begun++], NULL, consumer, (void *)(intptr_t)number);
  }
  for (int part = 0; part < parts; part++) {
    if (getchar() == EOF) return 0; /* whoever began this has gone */
    alarm(2 * PATIENCE); /* an end to a part that is stuck */
    pthread_barrier_wait(&start);
    double began = now(), cpu = cpu_of_server();
    pthread_barrier_wait(&start);
    printf("%.6f %.6f", now() - began, cpu_of_server() - cpu);
    if (paced) print_percentiles(delivered, connections);
    if (paced && confirms) print_percentiles(confirmed_after, connections);
    printf("\n");
    fflush(stdout);
  }
  for (int number = 0; number < begun; number++) pthread_join(running[number], NULL);
  return 0;
}
