package main

import (
	"bytes"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	pictureWidth = 24 * vg.Centimeter
	barStep      = 0.6 * vg.Centimeter
)

// picture draws the rate of each row ÷ that of its baseline as SVG: a bar from the top down
// for the median, and a line from the lowest to the highest round.
func (b *bench) picture() []byte {
	plot.DefaultFont.Variant, plotter.DefaultFont.Variant = "Sans", "Sans"
	p := plot.New()
	p.Title.Text = "Requests a second ÷ those without a limit; decisions a second ÷ rows of a bare upsert"
	rows := slices.DeleteFunc(slices.Concat(b.proxyRows, b.coreRows), func(r *row) bool { return !r.than(r.baseline).measured() })
	slices.Reverse(rows) // plots count from the bottom
	exact, leases, others := make(plotter.Values, len(rows)), make(plotter.Values, len(rows)), make(plotter.Values, len(rows))
	ranges := struct {
		plotter.XYs
		plotter.XErrors
	}{make(plotter.XYs, len(rows)), make(plotter.XErrors, len(rows))}
	labels := plotter.XYLabels{XYs: make(plotter.XYs, len(rows))}
	var names []string
	for i, r := range rows {
		values := exact
		switch {
		case r.proxy != nil && r.proxy.builtin:
			values = others
		case r.proxy != nil && r.proxy.limit.lease != "":
			values = leases
		}
		s := r.than(r.baseline)
		values[i] = s.median
		ranges.XYs[i] = plotter.XY{X: s.median, Y: float64(i)}
		ranges.XErrors[i].Low, ranges.XErrors[i].High = s.low-s.median, s.high-s.median
		labels.XYs[i] = plotter.XY{X: s.high, Y: float64(i)}
		labels.Labels = append(labels.Labels, "  "+number(s.median, 2)+": "+number(spreadOf(r.figures(perSecond)).median, 0)+"/s")
		names = append(names, r.name)
		p.X.Max = max(p.X.Max, s.high*1.2) // with room for the label
	}
	for _, kind := range []struct {
		label  string
		values plotter.Values
		color  color.RGBA
	}{{"exact", exact, color.RGBA{0x33, 0x67, 0x91, 0xff}}, {"with leases", leases, color.RGBA{0x3f, 0x9c, 0x6b, 0xff}}, {"other limiters", others, color.RGBA{0xbf, 0x7d, 0x1a, 0xff}}} {
		if len(rows) > 0 {
			bars := must(plotter.NewBarChart(kind.values, 0.65*barStep))
			bars.Horizontal, bars.Color, bars.LineStyle.Width = true, kind.color, 0
			p.Add(bars)
			p.Legend.Add(kind.label, bars)
		}
	}
	p.Add(must(plotter.NewXErrorBars(ranges)), must(plotter.NewLabels(labels)))
	p.NominalY(names...)
	canvas := vgsvg.New(pictureWidth, barStep*vg.Length(len(rows)+5))
	p.Draw(draw.New(canvas))
	var out bytes.Buffer
	must(canvas.WriteTo(&out))
	return out.Bytes()
}
