"use strict";
// Draws each chart of the page once it comes near to what is seen, or for paper, and keeps them in step with the switches.
(() => {
  const root = document.documentElement;
  const { charts, several } = JSON.parse(document.getElementById("numbers").textContent);
  const narrow = matchMedia("(max-width: 760px)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const drawn = new Set();
  let axis = "step";
  let printing = false;

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  const painted = (style) => (style && style.color === "text" ? { ...style, color: colour("--text") } : style);

  function tracesOf(chart) {
    return chart.traces.map(({ step, token, mark, ...trace }) => ({
      ...trace,
      ...(mark ? { yaxis: "y2", cliponaxis: false } : {}),
      ...(trace.line ? { line: painted(trace.line) } : {}),
      ...(trace.marker ? { marker: painted(trace.marker) } : {}),
      connectgaps: false,
      x: axis === "step" ? step : token,
    }));
  }

  function layoutOf(chart, width) {
    const line = { gridcolor: colour("--grid"), linecolor: colour("--line"), zerolinecolor: colour("--grid"), automargin: true };
    const unified = several || chart.traces.every((trace) => !trace.hovertemplate);
    return {
      width,
      margin: { l: 56, r: 14, t: 6, b: 40 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--text") },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--text") }, align: "left", namelength: -1 },
      hovermode: unified ? "x unified" : "closest",
      dragmode: touch ? false : "zoom",
      xaxis: {
        ...line,
        title: { text: axis === "step" ? "optimizer steps" : "trained tokens", standoff: 8 },
        hoverformat: axis === "step" ? ",d" : ".4~s",
        tickformat: axis === "step" ? "" : ".3~s",
        rangemode: "tozero",
        fixedrange: touch,
      },
      yaxis: {
        ...line,
        title: { text: chart.unit, standoff: 8 },
        type: chart.logarithmic ? "log" : "linear",
        tickformat: chart.format,
        hoverformat: chart.format.endsWith("%") ? ".2%" : ".5~g",
        exponentformat: "power",
        fixedrange: touch,
      },
      yaxis2: { overlaying: "y", range: [0, 1], fixedrange: true, visible: false },
      legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom", font: { size: narrow.matches ? 10 : 11 } },
      showlegend: chart.traces.length > 1,
    };
  }

  function unpack({ dtype, bdata }) {
    const bytes = Uint8Array.from(atob(bdata), (letter) => letter.charCodeAt(0));
    return new { i4: Int32Array, f4: Float32Array, f8: Float64Array }[dtype](bytes.buffer);
  }

  function linesOf(chart) {
    const marked = chart.traces.filter((trace) => trace.mark).flatMap((trace) => [...unpack(axis === "step" ? trace.step : trace.token)]);
    if (marked.length > 60) return [];
    const line = { color: colour("--soft"), width: 1, dash: "dot" };
    return marked.map((x) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line, layer: "below", opacity: 0.6 }));
  }

  const config = { displayModeBar: false, responsive: true };

  function draw(chart) {
    const place = document.getElementById(`chart-${chart.id}`);
    const width = printing ? 680 : undefined;
    const layout = { ...layoutOf(chart, width), shapes: linesOf(chart) };
    if (narrow.matches) layout.yaxis.title.text = "";
    try {
      Plotly.react(place, tracesOf(chart), layout, config);
      drawn.add(chart.id);
      root.dataset.drawn = String(drawn.size);
    } catch (error) {
      place.textContent = `This chart could not be drawn: ${error}`;
      console.error(error);
    }
  }

  const again = () => charts.filter((chart) => drawn.has(chart.id) || printing).forEach(draw);

  const byPlace = new Map(charts.map((chart) => [document.getElementById(`chart-${chart.id}`), chart]));
  const near = new IntersectionObserver(
    (entries) => {
      entries.forEach((entry) => {
        const chart = byPlace.get(entry.target);
        if (entry.isIntersecting && !drawn.has(chart.id)) draw(chart);
      });
      root.dataset.ready ??= String(Math.round(performance.now())); // what is seen is drawn
    },
    { rootMargin: "300px" },
  );

  document.querySelectorAll("[data-axis]").forEach((button) =>
    button.addEventListener("click", () => {
      axis = button.dataset.axis;
      document.querySelectorAll("[data-axis]").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      again();
    }),
  );
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    again();
  });
  document.querySelectorAll(".more").forEach((box) =>
    box.addEventListener("change", () => box.closest("figure").classList.toggle("all", box.checked)),
  );
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  narrow.addEventListener("change", again);
  addEventListener("beforeprint", () => {
    printing = true;
    root.classList.add("printing");
    root.dataset.before = root.dataset.theme || "";
    root.dataset.theme = "light";
    again();
  });
  addEventListener("afterprint", () => {
    printing = false;
    root.classList.remove("printing");
    if (root.dataset.before) root.dataset.theme = root.dataset.before;
    else delete root.dataset.theme;
    again();
  });
  byPlace.forEach((_, place) => near.observe(place));
})();
