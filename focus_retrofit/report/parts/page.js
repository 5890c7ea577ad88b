// What the page does by itself.
const results = JSON.parse(document.getElementById("results").textContent);
if (document.getElementById("tokens")) startView(results.inspection);

const download = document.getElementById("download");
if (download) {
  download.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(results, null, 1) + "\n"], { type: "application/json" }));
    link.download = "results.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
