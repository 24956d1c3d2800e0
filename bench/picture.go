package main

import (
	"bytes"
	"fmt"
	"html"
	"slices"
)

// Sizes in the picture, in pixels. A README shows the picture at about this size.
const (
	pictureWidth = 900
	labelWidth   = 205 // the width of the names, left of the bars
	panelWidth   = (pictureWidth - labelWidth) / 2
	longestBar   = 165 // the width at the highest end of an interval
	barStep      = 26
	barHeight    = 17
	panelTop     = 34 // the height above the bars of a panel
)

// pictureHead begins the picture, with a class for each color on light and on dark pages.
const pictureHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d"
width="%[1]d" height="%[2]d"
role="img" font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="13">
<title>%[3]s</title>
<style>
.page { fill: #ffffff } text { fill: #1f2328 } .note { fill: #59636e }
.range { stroke: #1f2328; stroke-width: 1.5 }
.plain { fill: #b8c0c8 } .exact { fill: #336791 } .leased { fill: #2f9e6e } .peer { fill: #d08a2e }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } text { fill: #f0f6fc } .note { fill: #9198a1 } .range { stroke: #f0f6fc }
.plain { fill: #6e7681 } .exact { fill: #5b9bd5 } .leased { fill: #3fb583 } .peer { fill: #d9953b }
}
</style>
<rect class="page" width="%[1]d" height="%[2]d" rx="8"/>
`

// picture returns an SVG of the rows with bars. Each proxy has a panel for 64 connections and one for more. A
// bar shows the ratio of a row's CPU per request to the CPU per request without a limit. A line shows the
// ratio's interval.
func (b *bench) picture() []byte {
	var out bytes.Buffer
	longest := 1.0
	var bars []*row
	for _, r := range b.rows {
		if r.bar != "" {
			bars = append(bars, r)
			longest = max(longest, r.toPlain().high)
		}
	}
	top := 8
	for _, proxy := range []string{"Caddy", "Traefik"} {
		var names []string // names of bars
		for _, r := range bars {
			if r.traefik != (proxy == "Traefik") {
				continue
			}
			left := labelWidth
			if r.load.connections > usualLoad.connections {
				left += panelWidth
			}
			if r.base == nil {
				fmt.Fprintf(&out,
					`<text x="%d" y="%d" font-size="14" font-weight="600">%s, %d connections</text>`+"\n",
					left, top+22, proxy, r.load.connections)
			}
			place := slices.Index(names, r.bar)
			if place < 0 {
				place = len(names)
				names = append(names, r.bar)
				fmt.Fprintf(&out, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", labelWidth-10,
					top+panelTop+place*barStep+13, html.EscapeString(r.bar))
			}
			drawBar(&out, r, left, top+panelTop+place*barStep, longestBar/longest)
		}
		if len(names) > 0 {
			top += panelTop + len(names)*barStep + 8
		}
	}
	notes := append([]string{
		"CPU of a request, proxy and store together, ÷ CPU without a limit in the same rounds. " +
			"Less is better.",
		fmt.Sprintf("A line contains the result of another run with %.0f %%. 100 keys. Load, proxy and "+
			"store share a machine (make bench).", 100*confidence),
	}, b.meaning()...)
	for i, note := range notes {
		fmt.Fprintf(&out, `<text class="note" x="16" y="%d">%s</text>`+"\n", top+18+20*i,
			html.EscapeString(note))
	}
	head := fmt.Sprintf(pictureHead, pictureWidth, top+14+20*len(notes),
		"CPU of a request in Caddy and Traefik with and without limits")
	return []byte(head + out.String() + "</svg>\n")
}

// toPlain returns the row's ratio to the row without a limit. The row without a limit has the ratio 1.
func (r *row) toPlain() estimate {
	if r.base == nil {
		return estimate{1, 1, 1}
	}
	return r.ratio()
}

// drawBar draws a row's bar, which begins at x, y. scale is the length of the ratio 1 in pixels.
func drawBar(out *bytes.Buffer, r *row, x, y int, scale float64) {
	ratio := r.toPlain()
	fmt.Fprintf(out, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d"/>`+"\n", r.class(), x, y,
		ratio.value*scale, barHeight)
	label := formatNumber(r.figure(cpuAll).value, 0) + " µs"
	if r.base != nil {
		label = ratio.text(2) + " · " + label
		fmt.Fprintf(out, `<path class="range" d="M%.1f %dH%.1f"/>`+"\n", float64(x)+ratio.low*scale,
			y+barHeight/2, float64(x)+ratio.high*scale)
	}
	fmt.Fprintf(out, `<text x="%.1f" y="%d">%s</text>`+"\n", float64(x)+ratio.high*scale+7, y+13, label)
}

// class returns the CSS class of the row's bar. See pictureHead.
func (r *row) class() string {
	switch l := r.limit; {
	case l == nil:
		return "plain"
	case l.peer != "":
		return "peer"
	case l.lease != "":
		return "leased"
	}
	return "exact"
}
