// Describes elements, and changes the document to match the description, without touching elements that match already.
// The focus, a selection and open details therefore stay as they are. Text is always text, and never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Describes an element: a tag, its attributes (`key` tells siblings apart), and children: elements or texts. */
export function h(tag, attributes, ...children) {
  return { tag, attributes: attributes ?? {}, children: children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false) };
}

/** Makes the children of an element what they are described to be. */
export function show(parent, ...children) {
  update(parent, children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false), parent.namespaceURI === SVG);
}

function update(parent, described, isSvg) {
  const kept = new Map();
  for (const node of parent.childNodes) {
    if (node.slackwaterKey !== undefined) kept.set(node.slackwaterKey, node);
  }
  let place = parent.firstChild;
  for (const [index, child] of described.entries()) {
    const key = typeof child === "object" && child.attributes.key !== undefined ? `k ${child.tag} ${child.attributes.key}` : `i ${index} ${typeof child === "object" ? child.tag : ""}`;
    let node = kept.get(key);
    kept.delete(key);
    if (node === undefined) {
      node = make(child, isSvg);
      node.slackwaterKey = key;
      parent.insertBefore(node, place);
    } else if (node === place) {
      place = place.nextSibling;
    } else {
      parent.insertBefore(node, place);
    }
    fill(node, child, isSvg);
  }
  for (const node of kept.values()) node.remove();
}

function make(child, isSvg) {
  if (typeof child !== "object") return document.createTextNode("");
  return isSvg || child.tag === "svg" ? document.createElementNS(SVG, child.tag) : document.createElement(child.tag);
}

function fill(node, child, isSvg) {
  if (typeof child !== "object") {
    if (node.data !== String(child)) node.data = String(child);
    return;
  }
  const before = node.slackwaterNames ?? [];
  const names = Object.keys(child.attributes).filter((name) => name !== "key");
  for (const name of before) if (!names.includes(name)) node.removeAttribute(name);
  for (const name of names) {
    const value = child.attributes[name];
    if (typeof value === "function") node[name] = value;
    else if (value === false || value === null || value === undefined) node.removeAttribute(name);
    else if (name === "open") { if (node.slackwaterOpened === undefined) { node.open = true; node.slackwaterOpened = true; } }
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
  }
  node.slackwaterNames = names;
  update(node, child.children, isSvg || child.tag === "svg");
}
