/* The drawing area, for mouse, finger and keyboard; what is drawn goes in front of the simulated camera. */

const SIDE = 56; // points of a drawing along each axis
let showDrawing = null; // shows an image of the address in the drawing area

function bindDrawing() {
  if (!DATA.camera) {
    byId("drawing-card").remove();
    return;
  }
  const canvas = byId("drawing");
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const pen = { x: canvas.width / 2, y: canvas.height / 5, down: false };
  const line = canvas.width / 8;
  const clear = () => context.clearRect(0, 0, canvas.width, canvas.height);
  let lowered = false; // whether the pen of the keyboard is down
  const mark = byId("pen"); // where the pen of the keyboard is
  const showPen = () => {
    mark.hidden = false;
    mark.style.left = `${(100 * pen.x) / canvas.width}%`;
    mark.style.top = `${(100 * pen.y) / canvas.height}%`;
    mark.className = lowered ? "down" : "";
  };
  const stroke = (x, y) => {
    context.strokeStyle = colour("ink");
    context.lineWidth = line;
    context.lineCap = context.lineJoin = "round";
    context.beginPath();
    context.moveTo(pen.x, pen.y);
    context.lineTo(x, y);
    context.stroke();
    Object.assign(pen, { x, y });
  };
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * canvas.width, ((event.clientY - box.top) / box.height) * canvas.height];
  };
  let waiting = 0;
  let shown = false; // the next stroke begins a new drawing
  const show = () => {
    clearTimeout(waiting);
    if (now.busy) {
      waiting = setTimeout(show, 300); // after the inputs that are being decided
      return;
    }
    const image = asImage(readDrawing(context, canvas.width), SIDE, DATA.camera.points, DATA.camera.filled);
    if (!image) {
      sayVerdict("There is nothing to see yet: draw a digit first.", true);
      return;
    }
    shown = true;
    setPlaying(false);
    now.drawing = writeImage(image);
    writeAddress();
    watchImage(image);
  };
  showDrawing = (image) => {
    const { points } = DATA.camera;
    const small = Object.assign(document.createElement("canvas"), { width: points, height: points });
    const inSmall = small.getContext("2d");
    inSmall.fillStyle = colour("ink");
    image.forEach((value, index) => {
      inSmall.globalAlpha = value;
      inSmall.fillRect(index % points, Math.floor(index / points), 1, 1);
    });
    clear();
    shown = true;
    context.drawImage(small, 0, 0, canvas.width, canvas.height);
  };
  canvas.addEventListener("pointerdown", (event) => {
    clearTimeout(waiting);
    if (shown) clear();
    shown = false;
    mark.hidden = true;
    canvas.setPointerCapture(event.pointerId);
    [pen.x, pen.y] = place(event);
    pen.down = true;
    stroke(pen.x, pen.y);
  });
  canvas.addEventListener("pointermove", (event) => pen.down && stroke(...place(event)));
  for (const name of ["pointerup", "pointercancel"])
    canvas.addEventListener(name, () => {
      if (pen.down) waiting = setTimeout(show, 900);
      pen.down = false;
    });
  canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && showPen());
  canvas.addEventListener("blur", () => (mark.hidden = true));
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
    if (!move && ![" ", "Enter", "Backspace"].includes(event.key)) return;
    event.preventDefault();
    if (event.key === "Enter") show();
    else if (event.key === "Backspace") clear();
    else if (event.key === " ") {
      lowered = !lowered;
      if (lowered && shown) clear();
      shown = false;
      if (lowered) stroke(pen.x, pen.y);
    } else {
      const to = [pen.x, pen.y].map((value, axis) => Math.min(Math.max(value + (move[axis] * canvas.width) / 20, line / 2), canvas.width - line / 2));
      if (lowered) stroke(...to);
      else [pen.x, pen.y] = to;
    }
    showPen();
  });
  byId("show").addEventListener("click", show);
  byId("clear").addEventListener("click", clear);
}

/* An image of `points` × `points` numbers in front of the simulated camera, with the drift of the moment. */
function watchImage(image) {
  const { kind, strength } = driftNow();
  const { scene, sensor, points } = DATA.camera;
  begin(film(image, points, scene, kind.sensor(sensor, strength), DATA.steps, now.seed++, kind.speed(strength)), -1);
  sayVerdict("Watching your drawing …", true);
  run();
}

/* The drawing as SIDE × SIDE numbers from 0 to 1. */
function readDrawing(context, width) {
  const { data } = context.getImageData(0, 0, width, width);
  const block = width / SIDE;
  return Float64Array.from({ length: SIDE * SIDE }, (_, index) => {
    let sum = 0;
    for (let j = 0; j < block; j++)
      for (let k = 0; k < block; k++) sum += data[4 * ((Math.floor(index / SIDE) * block + j) * width + (index % SIDE) * block + k) + 3];
    return sum / (255 * block ** 2);
  });
}
