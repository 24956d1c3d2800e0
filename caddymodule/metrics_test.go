package caddymodule_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// metricValues returns the values of the module's metrics, by the name and the values of the labels. The
// value of a histogram is the number of observations. A metric with the label source has one value for each
// source, and one for the sum of all sources. A label passed or shadow stands for true.
func metricValues(t *testing.T) map[string]float64 {
	t.Helper()
	context := caddy.ActiveContext()
	families, err := context.GetMetricsRegistry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		short, ours := strings.CutPrefix(family.GetName(), "caddy_pg_ratelimit_")
		if !ours {
			continue
		}
		for _, m := range family.GetMetric() {
			name, source := short, ""
			for _, label := range m.GetLabel() {
				switch value := label.GetValue(); {
				case label.GetName() == "source":
					source = " from " + value
				case value == "true":
					name += " " + label.GetName()
				case value != "false":
					name += " " + value
				}
			}
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() +
				float64(m.GetHistogram().GetSampleCount())
			values[name+source] = value
			if source != "" {
				values[name] += value
			}
		}
	}
	return values
}

// checkMetrics checks the values of some metrics.
func checkMetrics(t *testing.T, want map[string]float64) {
	t.Helper()
	got := metricValues(t)
	for name, want := range want {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s is %v, want %v; all metrics are %v", name, value, want, got)
		}
	}
}

// The decisions of a limit in the mode shadow have the label shadow, and requests pass it, so that they do
// not count as refusals.
func TestMetricsSeparateShadowDecisions(t *testing.T) {
	c := caddytest.Start(t, `
		:PORT {
			pg_ratelimit PREFIX {
				dsn memory
				limit 2 1h
				zone PREFIX_loose {
					limit 100 1h
				}
				zone PREFIX_trial {
					limit 1 1h
					mode shadow
				}
			}
		}`)
	for i := range 5 {
		want := http.StatusOK
		if i >= 2 {
			want = http.StatusTooManyRequests
		}
		c.Expect(want, "/")
	}
	p := c.Prefix()
	checkMetrics(t, map[string]float64{
		"decisions_total admitted passed " + p:                               2,
		"decisions_total limited " + p:                                       3,
		"decisions_total failed passed " + p:                                 0,
		"decisions_total failed " + p:                                        0,
		"decisions_total overloaded " + p:                                    0,
		"decisions_total admitted passed " + p + "_loose":                    2,
		"decisions_total limited " + p + "_loose":                            0,
		"decisions_total admitted passed " + p + " from memory":              2,
		"decisions_total limited " + p + " from memory":                      3,
		"decisions_total admitted passed " + p + "_trial shadow from memory": 1,
		"decisions_total limited passed " + p + "_trial shadow from memory":  4,
		"decision_duration_seconds":                                          5,
		"database_up":                                                        1, "batches_total": 0,
	})
	if n, ok := metricValues(t)["decisions_total limited "+p+"_trial"]; ok {
		t.Errorf("the limit in the mode shadow has a series of refusals with the value %v, want none", n)
	}
	check.Equal(t, "the lines about the limit in the mode shadow",
		len(c.LogEntries("a limit in the mode shadow would have refused")), 4)
}
