export const lanesPage = () => ({ title: "Lanes", looks: ["/api/lanes"], node: document.createElement("div"), answer() {} });
