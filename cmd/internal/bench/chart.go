package bench

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The places of a chart, in pixels.
const (
	chartWidth  = 800.0
	panelHeight = 260.0
	panelTop    = 50.0
	panelLeft   = 80.0
	panelRight  = 20.0
	panelGap    = 70.0
)

// A chart has the lines of an SVG picture.
type chart struct{ b strings.Builder }

// WriteChart writes an SVG picture: the percentiles on an axis of nines, and the worst p99 of each
// second over the rounds.
func (r Result) WriteChart(w io.Writer) error {
	response, err := r.Responses()
	if err != nil {
		return err
	}
	service, err := r.Services()
	if err != nil || service == nil {
		return err
	}
	c := &chart{}
	height := 2*panelHeight + panelTop + panelGap + 40
	fmt.Fprintf(&c.b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="12">`+"\n", chartWidth, height)
	fmt.Fprintf(&c.b, `<rect width="%.0f" height="%.0f" fill="white"/>`+"\n", chartWidth, height)
	c.text(panelLeft, 20, "start", fmt.Sprintf("bench %s: %.0f operations a second, %d rounds", r.Benchmark, Median(r.Rounds, func(r Round) float64 { return r.Achieved }), len(r.Rounds)))
	c.spectrum(response, service)
	c.series(r.Rounds)
	c.b.WriteString("</svg>\n")
	_, err = io.WriteString(w, c.b.String())
	return err
}

func (c *chart) text(x, y float64, anchor, text string) {
	fmt.Fprintf(&c.b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, html.EscapeString(text))
}

func (c *chart) line(x1, y1, x2, y2 float64, color string) {
	fmt.Fprintf(&c.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, color)
}

func (c *chart) path(points [][2]float64, color string) {
	var p strings.Builder
	for _, at := range points {
		fmt.Fprintf(&p, "%.1f,%.1f ", at[0], at[1])
	}
	fmt.Fprintf(&c.b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.TrimSpace(p.String()), color)
}

// An axis maps latencies to heights of a panel, by their logarithm.
type axis struct{ low, high, top float64 } // nanoseconds

func newAxis(low, high int64, top float64) axis {
	decade := func(v int64, round func(float64) float64) float64 {
		return math.Pow(10, round(math.Log10(float64(max(v, 1000)))))
	}
	a := axis{decade(low, math.Floor), decade(high, math.Ceil), top}
	if a.high <= a.low {
		a.high = a.low * 10
	}
	return a
}

func (a axis) y(ns float64) float64 {
	share := math.Log(max(ns, a.low)/a.low) / math.Log(a.high/a.low)
	return a.top + panelHeight*(1-share)
}

// draw draws a line and a label at each power of ten.
func (a axis) draw(c *chart) {
	for v := a.low; v <= a.high*1.001; v *= 10 {
		c.line(panelLeft, a.y(v), chartWidth-panelRight, a.y(v), "#dddddd")
		c.text(panelLeft-6, a.y(v)+4, "end", time.Duration(math.Round(v)).String())
	}
}

// nines are the labels of the axis of percentiles, at equal distances.
var nines = []string{"0", "90", "99", "99.9", "99.99", "99.999"}

// nineX is the place of a percentile: each further nine is as wide as the one before.
func nineX(percentile float64) float64 {
	n := math.Log10(100 / max(100-percentile, 1e-9))
	width := (chartWidth - panelLeft - panelRight) / float64(len(nines)-1)
	return panelLeft + width*min(n, float64(len(nines)-1))
}

func (c *chart) spectrum(response, service *hdrhistogram.Histogram) {
	low, high := service.Min(), service.Max()
	if response != nil {
		low, high = min(low, response.Min()), max(high, response.Max())
	}
	a := newAxis(low, high, panelTop)
	a.draw(c)
	for n, label := range nines {
		x := nineX(100 - 100*math.Pow(10, -float64(n)))
		c.line(x, panelTop, x, panelTop+panelHeight, "#dddddd")
		c.text(x, panelTop+panelHeight+16, "middle", label)
	}
	c.text(panelLeft, panelTop-8, "start", "latency by percentile")
	for i, l := range []struct {
		name, color string
		h           *hdrhistogram.Histogram
	}{{"response, from the due time", "#c0392b", response}, {"service", "#2471a3", service}} {
		if l.h == nil || l.h.TotalCount() == 0 {
			continue
		}
		var points [][2]float64
		for _, p := range percentiles(l.h.TotalCount()) {
			points = append(points, [2]float64{nineX(p), a.y(float64(l.h.ValueAtQuantile(p)))})
		}
		c.path(points, l.color)
		fmt.Fprintf(&c.b, `<rect x="%.0f" y="%.0f" width="10" height="10" fill="%s"/>`+"\n", panelLeft+170+float64(i)*210, panelTop-17, l.color)
		c.text(panelLeft+185+float64(i)*210, panelTop-8, "start", l.name)
	}
}

// percentiles are those that ten operations exceed, close enough for a line.
func percentiles(count int64) []float64 {
	var out []float64
	most := math.Log10(max(float64(count)/10, 1))
	for n := 0.0; n <= min(most, float64(len(nines)-1)); n += 0.05 {
		out = append(out, 100-100*math.Pow(10, -n))
	}
	return out
}

// series draws the largest p99 of each second over the rounds.
func (c *chart) series(rounds []Round) {
	var worst []float64 // microseconds
	for _, r := range rounds {
		for _, s := range r.Series {
			for len(worst) <= s.Second {
				worst = append(worst, 0)
			}
			worst[s.Second] = max(worst[s.Second], s.P99)
		}
	}
	top := panelTop + panelHeight + panelGap
	c.text(panelLeft, top-8, "start", "the largest p99 of each second, over the rounds")
	if len(worst) == 0 {
		return
	}
	low, high := math.MaxFloat64, 0.0
	for _, v := range worst {
		if v > 0 {
			low, high = min(low, v), max(high, v)
		}
	}
	a := newAxis(int64(low*1e3), int64(high*1e3), top)
	a.draw(c)
	width := (chartWidth - panelLeft - panelRight) / float64(max(len(worst)-1, 1))
	var points [][2]float64
	for second, v := range worst {
		if v > 0 {
			points = append(points, [2]float64{panelLeft + width*float64(second), a.y(v * 1e3)})
		}
	}
	c.path(points, "#c0392b")
	c.text(panelLeft, top+panelHeight+16, "middle", "0 s")
	c.text(chartWidth-panelRight, top+panelHeight+16, "end", fmt.Sprintf("%d s", len(worst)-1))
}
