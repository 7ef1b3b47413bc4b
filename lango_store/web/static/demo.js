// The page of `lango-store demo --web`: a tool that it runs, and a button that kills the worker that answers.
langoTools.where_am_i = () => Intl.DateTimeFormat().resolvedOptions().timeZone;
const workerOf = async (options) => (await fetch(`worker?id=${encodeURIComponent(chat)}`, options)).json();
const kill = make("button", { id: "kill", type: "button", hidden: true, onclick: () => workerOf({ method: "POST" }) });
$("status").after(kill);
(async () => {
  for (;;) {
    const { name, pid } = document.body.className === "busy" ? await workerOf().catch(() => ({})) : {};
    Object.assign(kill, { hidden: !name, textContent: `Kill ${name} (process ${pid})` });
    await new Promise((done) => setTimeout(done, 300));
  }
})();
