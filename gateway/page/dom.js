// The few ways in which the page changes its elements. Nothing is written that is there already.

export const $ = (id) => document.getElementById(id);

/** An element with a class and text. */
export function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

/** An SVG element with attributes. */
export function drawn(name, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

/** Text that may be cut where it is shown, and is whole where it is pointed at. */
export function setName(node, text, hint = text) {
  setText(node, text);
  setAttribute(node, "title", hint);
}

/**
 * Make the children of `parent` those of `items`: one a key, in their order. A child that stays is updated and not
 * replaced, so that it keeps the focus.
 */
export function keyed(parent, items, keyOf, create, update) {
  const children = (parent.keyedChildren ??= new Map());
  const wanted = new Set(items.map(keyOf));
  for (const [key, child] of children) {
    if (!wanted.has(key)) {
      child.remove();
      children.delete(key);
    }
  }
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = children.get(key);
    if (!child) {
      child = create(item);
      children.set(key, child);
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    update(child, item);
  }
}

/** A table row with `cells` cells, the first of which is its heading. */
export function tableRow(cells) {
  const row = element("tr");
  const heading = element("th");
  heading.scope = "row";
  row.append(heading, ...Array.from({ length: cells - 1 }, () => element("td")));
  return row;
}
