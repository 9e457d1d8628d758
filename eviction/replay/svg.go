package replay

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
)

// The plot, in user units of the SVG.
const (
	svgWidth, svgHeight          = 860.0, 480.0
	svgLeft, svgRight            = 64.0, 200.0
	svgTop, svgBottom            = 48.0, 56.0
	svgPlotWidth, svgPlotHeight  = svgWidth - svgLeft - svgRight, svgHeight - svgTop - svgBottom
	svgFont                      = `font-family="sans-serif"`
	svgGrid, svgText, svgYardRod = "#d8dde3", "#30363d", "#7d8590"
)

// Colours that can be told apart with any eyes (Okabe and Ito).
var svgColours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#b8a800"}

// WriteSVG draws the prefix hit of each policy over the size of the cache.
func WriteSVG(w io.Writer, rows []Row) error {
	if len(rows) == 0 {
		return fmt.Errorf("no results to draw: %w", ErrTrace)
	}
	var policies []string
	lo, hi, top := uint64(math.MaxUint64), uint64(0), 0.0
	for _, r := range rows {
		if !slices.Contains(policies, r.Policy) {
			policies = append(policies, r.Policy)
		}
		lo, hi, top = min(lo, r.Size), max(hi, r.Size), max(top, r.PrefixHit)
	}
	step := niceStep(100 * max(top, 0.001))
	ceiling := step * math.Ceil(100*max(top, 0.001)/step)
	x := func(size uint64) float64 {
		if lo == hi {
			return svgLeft + svgPlotWidth/2
		}
		return svgLeft + svgPlotWidth*math.Log(float64(size)/float64(lo))/math.Log(float64(hi)/float64(lo))
	}
	y := func(hit float64) float64 { return svgTop + svgPlotHeight*(1-100*hit/ceiling) }

	out := bufio.NewWriter(w)
	p := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	title := html.EscapeString(rows[0].Trace)
	p(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" role="img" aria-label="prefix hit by size of the cache, %s">`, svgWidth, svgHeight, title)
	p(`<rect width="100%%" height="100%%" fill="#ffffff"/>`)
	p(`<text x="%g" y="26" %s font-size="16" fill="%s">Prefix hit, %s</text>`, svgLeft, svgFont, svgText, title)
	for v := 0.0; v <= ceiling+step/2; v += step {
		p(`<line x1="%g" y1="%.1f" x2="%g" y2="%.1f" stroke="%s"/>`, svgLeft, y(v/100), svgLeft+svgPlotWidth, y(v/100), svgGrid)
		p(`<text x="%g" y="%.1f" %s font-size="12" fill="%s" text-anchor="end">%g %%</text>`, svgLeft-8, y(v/100)+4, svgFont, svgText, v)
	}
	var labelled []float64
	for _, r := range rows {
		at := x(r.Size)
		if slices.ContainsFunc(labelled, func(have float64) bool { return math.Abs(have-at) < 44 }) {
			continue
		}
		labelled = append(labelled, at)
		p(`<text x="%.1f" y="%g" %s font-size="12" fill="%s" text-anchor="middle">%s</text>`, at, svgTop+svgPlotHeight+20, svgFont, svgText, html.EscapeString(r.SizeArg))
	}
	p(`<text x="%g" y="%g" %s font-size="12" fill="%s" text-anchor="middle">size of the cache</text>`, svgLeft+svgPlotWidth/2, svgHeight-12, svgFont, svgText)
	for i, name := range policies {
		colour, dash := svgColours[i%len(svgColours)], ""
		if i >= len(svgColours) {
			dash = ` stroke-dasharray="8 3"`
		}
		if name == MinName || name == InfiniteName {
			colour, dash = svgYardRod, map[string]string{MinName: ` stroke-dasharray="6 4"`, InfiniteName: ` stroke-dasharray="2 4"`}[name]
		}
		curve := rowsOf(rows, name)
		fmt.Fprintf(out, `<polyline fill="none" stroke="%s" stroke-width="2"%s points="`, colour, dash)
		for _, r := range curve {
			fmt.Fprintf(out, "%.1f,%.1f ", x(r.Size), y(r.PrefixHit))
		}
		p(`"/>`)
		for _, r := range curve {
			p(`<circle cx="%.1f" cy="%.1f" r="3" fill="%s"><title>%s at %s: %.2f %%</title></circle>`, x(r.Size), y(r.PrefixHit), colour, html.EscapeString(name), html.EscapeString(r.SizeArg), 100*r.PrefixHit)
		}
		ly := svgTop + 8 + 20*float64(i)
		p(`<line x1="%g" y1="%g" x2="%g" y2="%g" stroke="%s" stroke-width="2"%s/>`, svgWidth-svgRight+16, ly, svgWidth-svgRight+44, ly, colour, dash)
		p(`<text x="%g" y="%g" %s font-size="13" fill="%s">%s</text>`, svgWidth-svgRight+52, ly+4, svgFont, svgText, html.EscapeString(name))
	}
	p(`</svg>`)
	return out.Flush()
}

func rowsOf(rows []Row, policy string) []Row {
	var out []Row
	for _, r := range rows {
		if r.Policy == policy {
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(a, b Row) int {
		switch {
		case a.Size < b.Size:
			return -1
		case a.Size > b.Size:
			return 1
		}
		return 0
	})
	return out
}

// niceStep divides 0..top into four to ten steps of a round number.
func niceStep(top float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(top/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if top/(m*unit) <= 8 {
			return m * unit
		}
	}
	return 10 * unit
}
