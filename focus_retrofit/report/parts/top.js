// The tokens most at home in each group of a layer, with the share of each that is there.
function showTop(place, layer) {
  place.replaceChildren(...(layer.top || []).map((tokens, group) => {
    const card = node("div"), title = node("h3"), list = node("ol");
    title.append(node("span", "badge " + groupClass(group), String(group)), "group " + group);
    if (layer.shares) title.append(node("small", "", percent(layer.shares[group])));
    for (const entry of tokens) {
      const line = node("li"), bar = node("span", "bar"), fill = node("i", groupClass(group));
      fill.style.width = 100 * entry.share + "%";
      bar.append(fill);
      bar.title = percent(entry.share) + " of its occurrences are in group " + group;
      line.append(node("code", "", quoted(String(entry.token))), bar, node("span", "many", "×" + entry.count));
      line.setAttribute("aria-label", `${quoted(String(entry.token))}: ${entry.count} here, ${percent(entry.share)} of its occurrences`);
      list.append(line);
    }
    card.append(title, list);
    return card;
  }));
}
