// Starts Swagger UI, which the page has loaded before, on the document of this server.
const dark = matchMedia("(prefers-color-scheme: dark)");

function follow() {
  document.documentElement.classList.toggle("dark-mode", dark.matches);
}

follow();
dark.addEventListener("change", follow);

SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#operations",
  deepLinking: true,
  defaultModelsExpandDepth: -1, // the examples say more than the schemas
  displayRequestDuration: true,
  filter: true,
  tryItOutEnabled: true,
  validatorUrl: null, // no badge of another host
});
