package page

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Sizes in pixels.
const (
	chartWidth = 880
	labelWidth = 330
	valueWidth = 90
	barHeight  = 20
	barGap     = 14
	chartTop   = 64
)

// For both themes; the chart has its own background, because the page may not follow the theme of the reader's system.
const chartStyle = `
	text { font: 13px system-ui, sans-serif; fill: #1f2328; }
	.title { font-size: 16px; font-weight: 600; }
	.quiet { fill: #59636e; font-size: 12px; }
	.back { fill: #ffffff; }
	.grid { stroke: #d1d9e0; }
	.bar { fill: #8c959f; }
	.ours { fill: #0969da; }
	.whisker { stroke: #1f2328; stroke-width: 1.5; }
	@media (prefers-color-scheme: dark) {
		text { fill: #f0f6fc; }
		.quiet { fill: #9198a1; }
		.back { fill: #0d1117; }
		.grid { stroke: #3d444d; }
		.bar { fill: #6e7681; }
		.ours { fill: #4493f8; }
		.whisker { stroke: #f0f6fc; }
	}
`

type bar struct {
	name           string
	mid, low, high float64
}

// Chart draws the rates of some cases as SVG: a bar to the median on a log scale, a line from min to max, the fastest
// on top. For an alternative in several cases the first one counts; ours is highlighted.
func Chart(cases []*Case, title, ours string) ([]byte, error) {
	var bars []bar
	for _, c := range cases {
		for _, name := range c.Names() {
			mid, low, high := Spread(c.counted(name, func(f Figure) float64 { return f.Rate }))
			if low > 0 && !slices.ContainsFunc(bars, func(b bar) bool { return b.name == name }) {
				bars = append(bars, bar{name, mid, low, high})
			}
		}
	}
	if len(bars) == 0 {
		return nil, errors.New("there are no rates to draw")
	}
	slices.SortStableFunc(bars, func(a, b bar) int { return cmp.Compare(b.mid, a.mid) })
	least, most := bars[0].low, bars[0].high
	for _, r := range bars {
		least, most = min(least, r.low), max(most, r.high)
	}
	// Whole decades, starting below the slowest, because a log scale has no zero.
	from, to := math.Floor(math.Log10(least)), math.Ceil(math.Log10(most))
	if from == math.Log10(least) {
		from--
	}
	x := func(v float64) float64 {
		return labelWidth + (chartWidth-labelWidth-valueWidth)*(math.Log10(v)-from)/(to-from)
	}
	height := chartTop + len(bars)*(barHeight+barGap) + 16
	var b bytes.Buffer
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say(
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-labelledby="title desc">`, chartWidth, height, chartWidth, height)
	say(`<title id="title">%s</title>`, escape(title))
	say(`<desc id="desc">%s</desc>`, escape(describe(bars)))
	say(`<style>%s</style>`, chartStyle)
	say(`<rect class="back" width="%d" height="%d"/>`, chartWidth, height)
	say(`<text class="title" x="16" y="26">%s</text>`, escape(title))
	say(`<text class="quiet" x="16" y="%d">bar: median; line: min to max</text>`, chartTop-14)
	for d := from; d <= to; d++ {
		say(`<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`, x(math.Pow(10, d)), chartTop-8,
			x(math.Pow(10, d)), height-12)
		say(`<text class="quiet" x="%.1f" y="%d" text-anchor="middle">%s</text>`, x(math.Pow(10, d)), chartTop-14,
			number(math.Pow(10, d)))
	}
	for i, r := range bars {
		y, class := chartTop+i*(barHeight+barGap), "bar"
		if r.name == ours {
			class = "bar ours"
		}
		middle := float64(y) + barHeight/2
		say(`<text x="%d" y="%.1f" text-anchor="end">%s</text>`, labelWidth-10, middle+4.5, escape(shorten(r.name)))
		say(`<rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"/>`, class, labelWidth, y,
			x(r.mid)-labelWidth, barHeight)
		say(`<line class="whisker" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, x(r.low), middle, x(r.high), middle)
		for _, end := range []float64{r.low, r.high} {
			say(`<line class="whisker" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, x(end), middle-5, x(end), middle+5)
		}
		say(`<text x="%.1f" y="%.1f">%s</text>`, x(r.high)+8, middle+4.5, number(r.mid))
	}
	say(`</svg>`)
	return b.Bytes(), nil
}

// describe returns the chart as text, for screen readers.
func describe(bars []bar) string {
	var parts []string
	for _, r := range bars {
		parts = append(parts, fmt.Sprintf("%s: %s (%s to %s)", r.name, number(r.mid), number(r.low), number(r.high)))
	}
	return "Events a second, median (min to max), on a log scale. " + strings.Join(parts, "; ") + "."
}

// shorten truncates a label to its column.
func shorten(s string) string {
	const most = 46
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder takes everything
	return b.String()
}
