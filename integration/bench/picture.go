package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// The picture's measures, in its own units.
const (
	pictureWidth = 960.0
	margin       = 24.0
	labelWidth   = 330.0
	valueWidth   = 150.0
	barHeight    = 16.0
	barStep      = 24.0
	wrapAt       = 140 // characters of a line of small text
)

// pictureStyle has a ground of its own, so that the picture is readable on any
// page, and a dark one for who prefers that.
const pictureStyle = `
.ground { fill: #ffffff; stroke: #d9dce1 }
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f }
.title { font-size: 17px; font-weight: 600 }
.head { font-weight: 600 }
.small { font-size: 11px; fill: #57606a }
.grid { stroke: #e6e8eb; stroke-width: 1 }
.plain { fill: #8c959f }
.ours { fill: #336791 }
.other { fill: #bf7d1a }
.range { stroke: #24292f; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117; stroke: #30363d }
text { fill: #e6edf3 }
.small { fill: #9198a1 }
.grid { stroke: #21262d }
.plain { fill: #6e7681 }
.ours { fill: #58a6ff }
.other { fill: #d29922 }
.range { stroke: #e6edf3 }
}
`

// bar is a line of the picture.
type bar struct {
	label string
	class string // of the style
	value spread
	ratio spread // to the row that it is compared with
}

// chart is a part of the picture: bars of one unit.
type chart struct {
	head string
	bars []bar
}

// charts are the parts that there are figures for.
func charts(r *results) []chart {
	caddy := chart{head: "Caddy: requests a second, and the ratio to Caddy without a limit"}
	traefik := chart{head: "Traefik: requests a second, and the ratio to Traefik without a limit"}
	for _, row := range r.rows {
		b := bar{row.name, "plain", spreadOf(rates(row.samples)), ratioOf(rates(row.samples), r.rates(row.plain))}
		if row.proxy.limit != nil {
			b.class = "ours"
		} else if row.proxy.builtin {
			b.class = "other"
		}
		if row.proxy.kind == onCaddy {
			caddy.bars = append(caddy.bars, b)
		} else {
			traefik.bars = append(traefik.bars, b)
		}
	}
	core := chart{head: "The core alone: decisions a second, and the ratio to a bare upsert"}
	for _, row := range r.core {
		b := bar{row.name, "ours", spreadOf(coreRates(row.samples)), row.ratio(r)}
		if row.load.Bare {
			b.class = "plain"
		}
		core.bars = append(core.bars, b)
	}
	var all []chart
	for _, c := range []chart{caddy, traefik, core} {
		if len(c.bars) > 0 {
			all = append(all, c)
		}
	}
	return all
}

// picture draws the results as SVG.
func picture(r *results) string {
	d := &drawing{y: margin + 18}
	d.text("title", margin, d.y, "start", "Rate limits counted in Postgres, and the same without")
	for _, c := range charts(r) {
		d.chart(c)
	}
	d.y += 20
	d.legend()
	d.y += 12
	for _, line := range r.machine {
		for _, part := range wrap(line+".", wrapAt) {
			d.y += 16
			d.text("small", margin, d.y, "start", part)
		}
	}
	height := d.y + margin
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img">
<title>Benchmark of pg-ratelimit: requests and decisions a second</title>
<style>%s</style>
<rect class="ground" x="0.5" y="0.5" width="%g" height="%g" rx="6"/>
%s</svg>
`, pictureWidth, height, pictureWidth, height, pictureStyle, pictureWidth-1, height-1, d.body.String())
}

// drawing is a picture as far as it has come.
type drawing struct {
	body strings.Builder
	y    float64
}

func (d *drawing) text(class string, x, y float64, anchor, text string) {
	fmt.Fprintf(&d.body, `<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">`, class, x, y, anchor)
	// Writing to memory does not fail.
	_ = xml.EscapeText(&d.body, []byte(text))
	d.body.WriteString("</text>\n")
}

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(&d.body, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

// chart draws bars from the top down, all on one scale.
func (d *drawing) chart(c chart) {
	d.y += 34
	d.text("head", margin, d.y, "start", c.head)
	d.y += 10
	most := 1.0
	for _, b := range c.bars {
		most = math.Max(most, b.value.high)
	}
	left := margin + labelWidth
	width := pictureWidth - margin - valueWidth - left
	step := gridStep(most)
	scale := width / most
	top, bottom := d.y, d.y+barStep*float64(len(c.bars))
	for at := 0.0; at <= most; at += step {
		d.line("grid", left+at*scale, top, left+at*scale, bottom)
		d.text("small", left+at*scale, bottom+13, "middle", thousands(at))
	}
	for _, b := range c.bars {
		middle := d.y + barStep/2
		d.text("label", left-8, middle+4.5, "end", b.label)
		fmt.Fprintf(&d.body, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="2"/>`+"\n",
			b.class, left, middle-barHeight/2, b.value.median*scale, barHeight)
		d.line("range", left+b.value.low*scale, middle, left+b.value.high*scale, middle)
		for _, end := range []float64{b.value.low, b.value.high} {
			d.line("range", left+end*scale, middle-4, left+end*scale, middle+4)
		}
		value := thousands(b.value.median)
		if !math.IsNaN(b.ratio.median) {
			value += "  × " + places(2)(b.ratio.median)
		}
		d.text("value", left+width+12, middle+4.5, "start", value)
		d.y += barStep
	}
	d.y += 16
}

// legend says what the colours mean.
func (d *drawing) legend() {
	x := margin
	for _, entry := range []struct{ class, text string }{
		{"ours", "pg_ratelimit"}, {"other", "Traefik's own rateLimit"}, {"plain", "no limit; in the core, no decision"},
	} {
		fmt.Fprintf(&d.body, `<rect class="%s" x="%.1f" y="%.1f" width="11" height="11" rx="2"/>`+"\n", entry.class, x, d.y-10)
		d.text("small", x+16, d.y, "start", entry.text)
		x += 32 + 6*float64(utf8.RuneCountInString(entry.text))
	}
	d.text("small", x, d.y, "start", "bars: medians; lines: the lowest and the highest round")
}

// gridStep is a round number that goes into the range four times or so.
func gridStep(most float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(most)))
	for _, factor := range []float64{0.1, 0.2, 0.25, 0.5, 1, 2, 2.5} {
		if most/(power*factor) <= 5 {
			return power * factor
		}
	}
	return power * 5
}

// wrap breaks text into lines of so many characters, where it can.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
