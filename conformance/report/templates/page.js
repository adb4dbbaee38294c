const show = () => {
  const details = document.getElementById(decodeURIComponent(location.hash.slice(1)))?.closest("details");
  if (details) details.open = true;
};
addEventListener("hashchange", show);
show();
for (const code of document.querySelectorAll(".code")) {
  const pre = code.querySelector("pre");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "copy";
  button.addEventListener("click", () => {
    getSelection().selectAllChildren(pre);
    navigator.clipboard?.writeText(pre.textContent).then(() => { button.textContent = "copied"; }, () => {});
  });
  code.querySelector(".label").append(button);
}
