// The number game. Everything that happens follows from the address. recipes/tasks/number_game/rules.py has the same
// options and the same rules; a test has this page judge every deal.
(() => {
  "use strict";

  const START = 100;
  const STEP = 10;
  const MOST_ROUNDS = 100;
  const LIGHTS = ["green", "red", "yellow"];
  const CHOICES = {
    lang: ["en", "zh"],
    theme: ["paper", "night", "forest", "candy", "slate", "contrast"],
    font: ["sans", "serif", "mono", "narrow"],
    light: ["top", "bottom"],
    lamps: ["row", "column"],
    size: ["regular", "large", "small"],
    layout: ["auto", "phone", "desktop"],
    order: ["shuffled", "ascending", "descending"],
  };
  const TEXTS = {
    en: {
      title: "Number game",
      round: "Round",
      score: "Score",
      lamps: { red: "Red", yellow: "Yellow", green: "Green" },
      wanted: { red: "smallest", yellow: "middle", green: "largest" },
      ask: "Choose a card",
      right: (light, wanted) => `Right! ${light} means the ${wanted} number.`,
      wrong: (light, wanted) => `Wrong. ${light} means the ${wanted} number.`,
      next: "Next round",
      finish: "See the result",
      again: "Play again",
      over: "Final score",
      count: (right, rounds) => `${right} of ${rounds} rounds right`,
      card: (digit) => `Card ${digit}`,
      lit: (light) => `${light} light is on`,
    },
    zh: {
      title: "数字游戏",
      round: "回合",
      score: "得分",
      lamps: { red: "红灯", yellow: "黄灯", green: "绿灯" },
      wanted: { red: "最小", yellow: "中间", green: "最大" },
      ask: "请选择一张卡片",
      right: (light, wanted) => `正确！${light}选${wanted}的数字。`,
      wrong: (light, wanted) => `错误。${light}选${wanted}的数字。`,
      next: "下一回合",
      finish: "查看结果",
      again: "再玩一次",
      over: "最终得分",
      count: (right, rounds) => `${rounds} 回合中答对 ${right} 次`,
      card: (digit) => `卡片 ${digit}`,
      lit: (light) => `${light}亮`,
    },
  };

  const $ = (id) => document.getElementById(id);
  const game = $("game");
  const cards = [...document.querySelectorAll(".card")];
  const lamps = [...document.querySelectorAll(".lamp")];

  /** Numbers from 0 up to 1 (Mulberry32, public domain, by Tommy Ettinger), the same for a seed everywhere. */
  function generator(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let mixed = Math.imul(state ^ (state >>> 15), state | 1);
      mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
      return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
    };
  }

  /** One round: a light, then three different digits from 1 to 9 in the order of the cards. */
  function draw(random, order) {
    const light = LIGHTS[Math.floor(random() * 3)];
    const pool = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    const digits = [0, 1, 2].map(() => pool.splice(Math.floor(random() * pool.length), 1)[0]);
    if (order === "ascending") digits.sort((a, b) => a - b);
    if (order === "descending") digits.sort((a, b) => b - a);
    return { light, digits };
  }

  /** `g374`: green, cards 3, 7, 4. */
  function parseDeal(code) {
    const light = { g: "green", r: "red", y: "yellow" }[code[0]];
    const digits = [...code.slice(1)].map(Number);
    const fits = /^[gry][1-9]{3}$/.test(code) && new Set(digits).size === 3;
    if (!fits) throw new Error(`deal: ${code} is not a light (g, r, y) and three different digits from 1 to 9`);
    return { light, digits };
  }

  /** The position of the card that the light asks for. */
  function wantedPosition({ light, digits }) {
    const sorted = [...digits].sort((a, b) => a - b);
    const digit = { red: sorted[0], yellow: sorted[1], green: sorted[2] }[light];
    return digits.indexOf(digit);
  }

  function readOptions() {
    const given = new URLSearchParams(location.search);
    const options = {};
    for (const [name, allowed] of Object.entries(CHOICES)) {
      options[name] = given.get(name) ?? allowed[0];
      if (!allowed.includes(options[name])) {
        throw new Error(`${name}: ${options[name]} is not one of ${allowed.join(", ")}`);
      }
    }
    options.seed = readInteger(given, "seed", null, 0, 4294967295);
    options.rounds = readInteger(given, "rounds", 10, 1, MOST_ROUNDS);
    options.deals = given.has("deal") ? given.get("deal").split(",").map(parseDeal) : null;
    if (options.deals && options.deals.length > MOST_ROUNDS) throw new Error(`deal: more than ${MOST_ROUNDS} rounds`);
    const unknown = [...given.keys()].filter((name) => !(name in CHOICES) && !["seed", "rounds", "deal"].includes(name));
    if (unknown.length) throw new Error(`unknown option: ${unknown.join(", ")}`);
    return options;
  }

  function readInteger(given, name, fallback, low, high) {
    const text = given.get(name);
    if (text === null) return fallback;
    const value = Number(text);
    if (!/^\d+$/.test(text) || value < low || value > high) {
      throw new Error(`${name}: ${text} is not a whole number from ${low} to ${high}`);
    }
    return value;
  }

  let options;
  let text;
  let deals;
  let state;

  function start() {
    // Without a seed every game is another one; with a seed "Play again" plays the same rounds again.
    const seed = options.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
    const random = generator(seed);
    deals = options.deals ?? Array.from({ length: options.rounds }, () => draw(random, options.order));
    state = { seed, round: 0, score: START, choice: null, verdicts: [], phase: "choose" };
    show();
  }

  function choose(position) {
    if (state.phase !== "choose") return;
    const right = position === wantedPosition(deals[state.round]);
    state.choice = position;
    state.verdicts.push(right ? "right" : "wrong");
    state.score += right ? STEP : -STEP;
    state.phase = "feedback";
    show();
  }

  function go() {
    if (state.phase === "over") return start();
    if (state.phase !== "feedback") return undefined;
    state.choice = null;
    if (state.round + 1 < deals.length) {
      state.round += 1;
      state.phase = "choose";
    } else {
      state.phase = "over";
    }
    return show();
  }

  function show() {
    const deal = deals[state.round];
    const verdict = state.phase === "feedback" ? state.verdicts.at(-1) : "";
    const over = state.phase === "over";
    showState(deal, verdict);
    $("round").textContent = `${state.round + 1} / ${deals.length}`;
    $("score").textContent = state.score;
    $("table").hidden = over;
    $("result").hidden = !over;
    for (const lamp of lamps) lamp.classList.toggle("on", lamp.dataset.lamp === deal.light);
    $("light").setAttribute("aria-label", text.lit(text.lamps[deal.light]));
    const wanted = wantedPosition(deal);
    cards.forEach((card, position) => {
      card.textContent = deal.digits[position];
      card.setAttribute("aria-label", text.card(deal.digits[position]));
      card.classList.toggle("right", verdict === "right" && position === state.choice);
      card.classList.toggle("wrong", verdict === "wrong" && position === state.choice);
      card.classList.toggle("wanted", verdict === "wrong" && position === wanted);
      card.disabled = state.phase !== "choose";
    });
    showMessage(deal, verdict);
    if (over) showResult();
  }

  function showMessage(deal, verdict) {
    const { light } = deal;
    const sentence = verdict && text[verdict](text.lamps[light], text.wanted[light]);
    $("message").textContent = state.phase === "over" ? "" : sentence || text.ask;
    $("message").className = verdict;
    const last = state.round + 1 === deals.length;
    $("go").textContent = state.phase === "over" ? text.again : last ? text.finish : text.next;
    $("go").classList.toggle("away", state.phase === "choose");
    $("go").disabled = state.phase === "choose";
  }

  function showResult() {
    const right = state.verdicts.filter((verdict) => verdict === "right").length;
    $("result-score").textContent = state.score;
    $("result-right").textContent = text.count(right, deals.length);
    $("history").replaceChildren(...state.verdicts.map((verdict) => {
      const mark = document.createElement("li");
      mark.className = verdict;
      mark.textContent = verdict === "right" ? "✓" : "✗";
      return mark;
    }));
  }

  /** What a driver reads; attributes are not drawn. */
  function showState(deal, verdict) {
    Object.assign(game.dataset, {
      phase: state.phase,
      seed: state.seed,
      round: state.round,
      rounds: deals.length,
      light: deal.light,
      digits: deal.digits.join(""),
      score: state.score,
      choice: state.choice ?? "",
      verdict,
      verdicts: state.verdicts.map((each) => each[0]).join(""),
    });
  }

  function dress() {
    text = TEXTS[options.lang];
    document.documentElement.lang = options.lang;
    document.title = text.title;
    for (const name of ["theme", "font", "light", "lamps", "size", "layout"]) document.body.dataset[name] = options[name];
    $("title").textContent = text.title;
    $("round-name").textContent = text.round;
    $("score-name").textContent = text.score;
    $("result-name").textContent = text.over;
    for (const lamp of lamps) lamp.querySelector("span").textContent = text.lamps[lamp.dataset.lamp];
  }

  function refuse(error) {
    game.dataset.phase = "error";
    game.dataset.error = error.message;
    const message = document.createElement("p");
    message.id = "error";
    message.textContent = error.message;
    game.replaceChildren(message);
  }

  try {
    options = readOptions();
    dress();
    start();
  } catch (error) {
    refuse(error);
    return;
  }
  cards.forEach((card, position) => card.addEventListener("click", () => choose(position)));
  $("go").addEventListener("click", go);
  document.addEventListener("keydown", (event) => {
    if (["1", "2", "3"].includes(event.key)) choose(Number(event.key) - 1);
    if (event.key === "Enter" && event.target === document.body) go();
  });
})();
