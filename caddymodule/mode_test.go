package caddymodule_test

import (
	"net/http"
	"testing"
)

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
