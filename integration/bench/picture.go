package main

import (
	_ "embed" // picture.svg
	"math"
	"slices"
	"strings"
	"text/template"
)

// pictureSVG is the template of the picture. It has the measures that are not here.
//
//go:embed picture.svg
var pictureSVG string

const (
	chartWidth = 432.0 // of the longest bar
	barStep    = 24
	lineStep   = 16 // of small text
)

// chart is a part of the picture: horizontal bars on one scale, from the top down.
type chart struct {
	Head      string
	Y, Height int
	Bars      []bar
}

// bar has its lengths in units of the picture.
type bar struct {
	Y                 int
	Label, Value      string
	Class             string // of the template's style
	Median, Low, High float64
}

// picture draws the rates of all rows as SVG.
func (b *bench) picture() string {
	y := 76
	var charts []chart
	add := func(head string, rows []*row) {
		if len(rows) > 0 {
			charts = append(charts, chart{head, y, len(rows) * barStep, b.bars(rows)})
			y += len(rows)*barStep + 48
		}
	}
	traefik := slices.IndexFunc(b.proxyRows, func(r *row) bool { return r.proxy.traefik })
	if traefik < 0 {
		traefik = len(b.proxyRows)
	}
	add("Caddy: requests a second, and the ratio to Caddy without a limit", b.proxyRows[:traefik])
	add("Traefik: requests a second, and the ratio to Traefik without a limit", b.proxyRows[traefik:])
	add("The core alone: decisions a second, and the ratio to a bare upsert", b.coreRows)
	var text strings.Builder
	check(template.Must(template.New("picture").Parse(pictureSVG)).Execute(&text, map[string]any{
		"Charts": charts, "Legend": y, "Machine": b.machine, "LineStep": lineStep, "Height": y + lineStep*(len(b.machine)+2),
	}))
	return text.String()
}

// bars are those of the rows, on one scale.
func (b *bench) bars(rows []*row) (bars []bar) {
	most := 0.0
	for _, r := range rows {
		most = max(most, spreadOf(r.figures(rate)).high)
	}
	for i, r := range rows {
		s, scale := spreadOf(r.figures(rate)), chartWidth/most
		line := bar{i * barStep, r.name, thousands(s.median), "plain", s.median * scale, s.low * scale, s.high * scale}
		if ratio := b.ratio(r.name, r.baseline); !math.IsNaN(ratio.median) {
			line.Value += "  × " + places(2)(ratio.median)
		}
		switch {
		case r.proxy != nil && r.proxy.limit != nil && r.proxy.limit.Lease != "":
			line.Class = "leased"
		case r.proxy == nil && !r.core.Bare, r.proxy != nil && r.proxy.limit != nil:
			line.Class = "ours"
		case r.proxy != nil && r.proxy.builtin:
			line.Class = "other"
		}
		bars = append(bars, line)
	}
	return bars
}
