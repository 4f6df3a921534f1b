// Asks the server for news and puts the new page in the place of the old one.
let seen = null;

async function look() {
  const status = document.querySelector(".news");
  try {
    const answer = await fetch("version", { cache: "no-store" });
    const version = await answer.text();
    if (!answer.ok) throw new Error(version);
    if (seen !== null && version !== seen) {
      const page = await fetch("./", { cache: "no-store" });
      if (!page.ok) throw new Error(await page.text());
      replacePage(await page.text());
    }
    seen = version;
    document.querySelector(".news").textContent = "live";
  } catch (error) {
    status.textContent = "no news from the server; trying again";
  }
  setTimeout(look, 2000);
}

function replacePage(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
  const old = document.querySelector("main"), focus = document.activeElement;
  const open = [...old.querySelectorAll("details")].map((item) => item.open);
  const name = focus && focus.form ? focus.name : null, id = focus ? focus.id : "";
  old.replaceWith(fresh);
  // Only where the page still has as many: a new chart would shift them.
  const details = [...fresh.querySelectorAll("details")];
  if (details.length === open.length) details.forEach((item, k) => { item.open = open[k]; });
  start();
  const again = name ? document.querySelector(`.filters [name=${name}]`) : id && document.getElementById(id);
  if (again) again.focus({ preventScroll: true });
}

look();
