package browsertest

import (
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// fast makes the timers of the page run 1 000 times as fast.
const fast = `{ const later = window.setTimeout; window.setTimeout = (f, ms, ...rest) => later(f, (ms || 0) / 1000, ...rest); }`

// Eight hours of samples, at the interval of a minute, leave the heap flat and below 50 MB.
func TestHeapAfterHours(t *testing.T) {
	const samples = 8 * 60
	s := start(t, siteOptions{})
	s.populate(100)
	b := open(t, s.url)
	b.run(command(page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: fast}))
	b.load("#/topics")
	b.eval(`(() => { const e = document.querySelector('[name=interval]'); e.value = '60000'; e.dispatchEvent(new Event('change')); })()`, nil)
	count := func() int {
		n := 0
		for _, r := range b.sent() {
			if r != "" {
				n++
			}
		}
		return n
	}
	heap := func() (mb float64) {
		b.eval(`(gc(), gc(), performance.memory.usedJSHeapSize / 1e6)`, &mb)
		return mb
	}
	count()
	var early float64
	for total := 0; total < samples; {
		b.run(chromedp.Evaluate[chromedp.Void](`new Promise((ok) => requestAnimationFrame(() => setTimeout(ok, 200000)))`, chromedp.EvalAwaitPromise))
		total += count()
		if early == 0 && total > samples/4 {
			early = heap()
		}
	}
	late := heap()
	t.Logf("the heap has %.1f MB after two hours of samples and %.1f MB after eight", early, late)
	if late > 50 || late > early+max(1, early/10) {
		t.Errorf("the heap has %.1f MB after eight hours and %.1f MB after two, want no growth and at most 50 MB", late, early)
	}
	rows := value[int](b, `document.getElementsByTagName('*').length`)
	assert.That(t, rows <= 3000, "the page has %d elements", rows)
}
