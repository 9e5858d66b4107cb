package browsertest

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
)

func navigate(url string) chromedp.Action[chromedp.Void] { return chromedp.Navigate(url) }

// poor lists the texts whose contrast is below that of WCAG 2.2 AA: 4.5, or 3 for large text.
const poor = `(() => {
  const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return c.startsWith('color(srgb') ? [m[0] * 255, m[1] * 255, m[2] * 255, m[3] ?? 1] : [m[0], m[1], m[2], m[3] ?? 1]; };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3]));
  const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const canvas = matchMedia('(prefers-color-scheme: dark)').matches ? [18, 18, 18] : [255, 255, 255];
  const back = (e) => { const chain = []; for (; e; e = e.parentElement) chain.push(parse(getComputedStyle(e).backgroundColor)); return chain.reverse().reduce((sum, c) => over(c, sum), canvas); };
  const out = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n = walk.nextNode(); n; n = walk.nextNode()) {
    const e = n.parentElement;
    if (!n.data.trim() || !e.checkVisibility({opacityProperty: true, visibilityProperty: true}) || e.closest('noscript, script, .skip, svg, option') || e.closest('[disabled]')) continue;
    const s = getComputedStyle(e), b = back(e), f = over(parse(s.color), b);
    const [x, y] = [light(f), light(b)].sort((p, q) => q - p);
    const ratio = (x + 0.05) / (y + 0.05), size = parseFloat(s.fontSize);
    if (ratio < (size >= 24 || size >= 18.66 && s.fontWeight >= 700 ? 3 : 4.5)) out.push(ratio.toFixed(2) + ' ' + n.data.trim().slice(0, 60) + ' (' + e.tagName + '.' + e.className + ')');
  }
  return out;
})()`

// Text can be read in light and dark, and no page is wider than its window.
func TestContrastAndWidth(t *testing.T) {
	s := start(t, siteOptions{})
	s.populate(100)
	b := open(t, s.url)
	b.load("")
	for _, dark := range []bool{false, true} {
		b.dark(dark)
		for _, width := range []int64{320, 1280, 2560} {
			b.size(width, 900)
			for _, p := range pages {
				b.visit(p.fragment)
				var found []string
				b.eval(poor, &found)
				for _, f := range found {
					t.Errorf("%s, dark %t, %d px: contrast %s", p.fragment, dark, width, f)
				}
				var wide int64
				b.eval(`document.documentElement.scrollWidth`, &wide)
				if wide > width {
					t.Errorf("%s: the page is %d px wide in a window of %d px", p.fragment, wide, width)
				}
				b.shoot(fmt.Sprintf("%s-%d-%s", p.name, width, map[bool]string{true: "dark", false: "light"}[dark]))
			}
		}
	}
}
