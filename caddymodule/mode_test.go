package caddymodule_test

import (
	"net/http"
	"testing"
)

func TestTheMetricsSayWhatALimitInTheModeShadowWouldDo(t *testing.T) {
	c := start(t, `
		:PORT {
			pg_ratelimit {
				dsn memory
				zone PREFIX_trial {
					limit 1 1m
					mode shadow
				}
				zone PREFIX_web {
					limit 2 1m
				}
			}
			respond "ok"
		}`)
	c.expect(http.StatusOK, "/")
	c.expect(http.StatusOK, "/")
	c.expect(http.StatusTooManyRequests, "/")
	checkMetrics(t, map[string]float64{
		"decisions_total would_allow " + c.prefix() + "_trial from memory": 1,
		"decisions_total would_deny " + c.prefix() + "_trial from memory":  2,
		"decisions_total allowed " + c.prefix() + "_web from memory":       2,
		"decisions_total denied " + c.prefix() + "_web from memory":        1,
	})
	for name := range measured(t) {
		if name == "decisions_total denied "+c.prefix()+"_trial" {
			t.Errorf("there is %s", name)
		}
	}
	if n := len(c.lines("a limit in the mode shadow would have refused")); n != 2 {
		t.Errorf("the log has %d lines about the limit", n)
	}
}

// A request that waits asks again and again, and is charged once to a limit in the mode shadow.
func TestAWaitChargesALimitInTheModeShadowOnce(t *testing.T) {
	c := start(t, `
		:PORT {
			pg_ratelimit {
				dsn memory
				zone PREFIX_trial {
					limit 3 1h
					mode shadow
				}
				zone PREFIX_web {
					algorithm fixed_window
					limit 1 200ms
					wait up to 5s
				}
			}
			respond "ok"
		}`)
	for range 3 {
		c.expect(http.StatusOK, "/")
	}
	checkMetrics(t, map[string]float64{
		"decisions_total would_allow " + c.prefix() + "_trial from memory": 3,
		"decisions_total allowed " + c.prefix() + "_web from memory":       3,
	})
}
