package browsertest

import (
	"fmt"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

func navigate(url string) chromedp.Action[chromedp.Void] { return chromedp.Navigate(url) }

// interactive are the elements that a mouse can use, which a keyboard must reach.
const interactive = `[...document.querySelectorAll('a[href], button, input, select, textarea, summary')].filter((e) => !e.disabled && e.checkVisibility() && e.tabIndex >= 0 && !e.closest('[inert]'))`

// outlined reports the faults of the focus mark.
const outlined = `((e) => { const s = getComputedStyle(e); return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1 || s.boxShadow !== 'none'; })(document.activeElement)`

// Every control of every page is reached with the Tab key, in its order in the page, and shows that
// it has the focus.
func TestKeyboard(t *testing.T) {
	s := start(t, siteOptions{})
	s.populate(1)
	b := open(t, s.url)
	b.load("")
	b.click("pause", "") // an update could replace an element between two keys
	for _, p := range pages {
		b.visit(p.fragment)
		b.eval(`document.activeElement.blur(); scrollTo(0, 0); window.reached = new Set(); null`, nil)
		missing := interactive + `.filter((e) => !window.reached.has(e) && e.type !== 'radio').map((e) => e.outerHTML)`
		n := value[int](b, interactive+`.length`)
		missed := []string{""}
		// Once around, or twice: a page can move the focus to its heading after the first keys.
		for k := 0; k < 2*n+4 && (k < n+2 || len(missed) > 0); k++ {
			b.run(chromedp.KeyEvent(kb.Tab))
			bad := value[string](b, `window.reached.add(document.activeElement), document.activeElement === document.body || `+outlined+` ? '' : document.activeElement.outerHTML`)
			assert.That(t, bad == "", "%s: the focus is not visible on %.200s", p.fragment, bad)
			if k >= n+1 {
				b.eval(missing, &missed)
			}
		}
		for _, m := range missed {
			t.Errorf("%s: the keyboard does not reach %.200s", p.fragment, m)
		}
	}
	// Enter on a link opens its page.
	b.visit("#/topics")
	b.eval(`document.querySelector('main a[href="#/topics/normal"]').focus(); null`, nil)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.wait(`document.querySelector('main[data-page=topics-one][data-ready]')`)
}

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

// Text can be read in light and dark, and no page is wider than its window, in both languages.
func TestContrastAndWidth(t *testing.T) {
	s := start(t, siteOptions{})
	s.populate(100)
	b := open(t, s.url)
	b.load("")
	for _, v := range []struct {
		name, language string
		dark           bool
		widths         []int64
	}{
		{"light", "en", false, []int64{320, 1280, 2560}},
		{"dark", "en", true, []int64{320, 1280, 2560}},
		{"chinese", "zh", false, []int64{320, 1280}},
	} {
		b.dark(v.dark)
		b.speak(v.language)
		for _, width := range v.widths {
			b.size(width, 900)
			for _, p := range pages {
				b.visit(p.fragment)
				found := value[[]string](b, poor)
				for _, f := range found {
					t.Errorf("%s, %s, %d px: contrast %s", p.fragment, v.name, width, f)
				}
				wide := value[int64](b, `document.documentElement.scrollWidth`)
				if wide > width {
					t.Errorf("%s, %s: the page is %d px wide in a window of %d px", p.fragment, v.name, wide, width)
				}
				b.shoot(fmt.Sprintf("%s-%d-%s", p.name, width, v.name))
			}
		}
	}
}

// speak chooses the language.
func (b *tab) speak(code string) {
	b.t.Helper()
	b.eval(fmt.Sprintf(`(() => { const e = [...document.querySelectorAll('#bar select')].find((e) => e.value === 'en' || e.value === 'zh'); e.value = %q; e.dispatchEvent(new Event('change')); })()`, code), nil)
	b.wait(fmt.Sprintf(`document.documentElement.lang.startsWith(%q)`, code))
}

// The navigation is one line in a window of 1 280 pixels, with a vertical scroll bar of 15 pixels
// and the button of a session beside it.
func TestNavigationIsOneLine(t *testing.T) {
	s, _ := guarded(t)
	b := open(t, s.url)
	b.size(1265, 900)
	b.load("")
	b.signIn("root")
	for _, language := range []string{"en", "zh"} {
		b.speak(language)
		b.ready()
		var lines, links, spare int
		b.eval(`document.querySelectorAll('#bar nav a').length`, &links)
		b.eval(`new Set([...document.querySelectorAll('#bar nav a')].map((e) => e.offsetTop)).size`, &lines)
		b.eval(`Math.round(document.querySelector('#bar nav').getBoundingClientRect().right - [...document.querySelectorAll('#bar nav a')].at(-1).getBoundingClientRect().right)`, &spare)
		assert.That(t, lines == 1 && links >= 8, "%s: %d links in %d lines", language, links, lines)
		beside := value[bool](b, `document.querySelector('#bar .status').getBoundingClientRect().top < document.querySelector('#bar nav').getBoundingClientRect().bottom`)
		assert.That(t, beside, "%s: the status is below the navigation", language)
		t.Logf("%s: %d pixels are left", language, spare)
	}
}
