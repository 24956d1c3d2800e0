package main

import (
	"bytes"
	"fmt"
	"html"
	"slices"
	"strings"
)

// Sizes in the picture, in pixels. A README shows it about as wide as it is.
const (
	pictureWidth = 900
	labelWidth   = 205 // left of the bars
	panelWidth   = (pictureWidth - labelWidth) / 2
	longestBar   = 185 // of the highest ratio in the picture
	barStep      = 26
	barHeight    = 17
	panelTop     = 34 // above the bars of a panel
)

// pictureHead has the colours, for light and for dark pages. The names are classes.
const pictureHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="13">
<title>%[3]s</title>
<style>
.page { fill: #ffffff } text { fill: #1f2328 } .note { fill: #59636e } .range { stroke: #1f2328; stroke-width: 1.5 }
.plain { fill: #b8c0c8 } .exact { fill: #336791 } .leased { fill: #2f9e6e } .peer { fill: #d08a2e }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } text { fill: #f0f6fc } .note { fill: #9198a1 } .range { stroke: #f0f6fc }
.plain { fill: #6e7681 } .exact { fill: #5b9bd5 } .leased { fill: #3fb583 } .peer { fill: #d9953b }
}
</style>
<rect class="page" width="%[1]d" height="%[2]d" rx="8"/>
`

// picture draws the rows that have bars as SVG: for each proxy a panel with 64 connections and one
// with more. A bar is the median of a row's requests a second ÷ those without a limit. A line goes
// from the lowest round to the highest.
func (b *bench) picture() []byte {
	var out bytes.Buffer
	longest := 1.0
	for _, r := range b.proxyRows {
		if s := r.than(r.baseline); r.bar != "" && s.measured() {
			longest = max(longest, s.high)
		}
	}
	top := 8
	for _, proxy := range []string{"Caddy", "Traefik"} {
		var names []string // of the bars
		for _, r := range b.proxyRows {
			if r.bar == "" || r.proxy.traefik != (proxy == "Traefik") {
				continue
			}
			left := labelWidth
			if r.load.connections > thousand.connections {
				left += panelWidth
			}
			if r.baseline == nil {
				fmt.Fprintf(&out, `<text x="%d" y="%d" font-size="14" font-weight="600">%s, %d connections</text>`+"\n", left, top+22, proxy, r.load.connections)
			}
			place := slices.Index(names, r.bar)
			if place < 0 {
				place = len(names)
				names = append(names, r.bar)
				fmt.Fprintf(&out, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", labelWidth-10, top+panelTop+place*barStep+13, html.EscapeString(r.bar))
			}
			drawBar(&out, r, left, top+panelTop+place*barStep, longestBar/longest)
		}
		if len(names) > 0 {
			top += panelTop + len(names)*barStep + 8
		}
	}
	for i, line := range []string{
		fmt.Sprintf("Requests a second, and ÷ those without a limit in the same round: median of %d rounds; lines: lowest to highest round.", b.rounds),
		"The load, the proxy and Postgres or Redis share the machine. 1,000 keys. Higher is better.",
	} {
		fmt.Fprintf(&out, `<text class="note" x="16" y="%d">%s</text>`+"\n", top+18+20*i, line)
	}
	head := fmt.Sprintf(pictureHead, pictureWidth, top+54, "Requests a second in Caddy and Traefik with and without limits")
	return []byte(head + out.String() + "</svg>\n")
}

// drawBar draws a row from a point to the right. A ratio of 1 is so long as scale says.
func drawBar(out *bytes.Buffer, r *row, x, y int, scale float64) {
	ratio := spread{1, 1, 1}
	if r.baseline != nil {
		ratio = r.than(r.baseline)
	}
	if !ratio.measured() {
		return
	}
	fmt.Fprintf(out, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d"/>`+"\n", r.class(), x, y, ratio.median*scale, barHeight)
	label := number(spreadOf(r.figures(perSecond)).median, 0) + "/s"
	if r.baseline != nil {
		label = number(ratio.median, 2) + " · " + label
		fmt.Fprintf(out, `<path class="range" d="M%.1f %dH%.1f"/>`+"\n", float64(x)+ratio.low*scale, y+barHeight/2, float64(x)+ratio.high*scale)
	}
	fmt.Fprintf(out, `<text x="%.1f" y="%d">%s</text>`+"\n", float64(x)+ratio.high*scale+7, y+13, label)
}

// class is the kind of the row's bar, see pictureHead.
func (r *row) class() string {
	switch l := r.proxy.limit; {
	case l == nil:
		return "plain"
	case l.peer != "":
		return "peer"
	case strings.HasSuffix(r.bar, "leased"):
		return "leased"
	}
	return "exact"
}
