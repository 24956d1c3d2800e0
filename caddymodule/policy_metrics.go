package caddymodule

import (
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// policyCounters count what the policy decides. Users and keys are not labels.
type policyCounters struct {
	requests *prometheus.CounterVec
	limits   *prometheus.CounterVec
}

// decided counts what the policy says about a request.
func (c *policyCounters) decided(o *policy.Verdict) {
	outcome := "free"
	switch {
	case o.Refused():
		outcome = o.Reason.String()
	case o.Exempt:
		outcome = "exempt"
	case len(o.Hits) > 0:
		outcome = "charged"
	}
	c.requests.WithLabelValues(outcome).Inc()
}

// undecided counts a request for which no decision on the limits of the policy was made: outcome says
// what happened to it.
func (c *policyCounters) undecided(marks []*policy.Mark, outcome string) {
	for _, m := range marks {
		if !m.Shadow {
			c.limits.WithLabelValues(m.Rule, m.Limit, outcome, noSource).Inc()
		}
	}
}

// withoutDecision says what happened to a request without a decision.
func withoutDecision(outcome *respond.Outcome) string {
	if errors.Is(outcome.Err, ratelimit.ErrOverloaded) {
		return "overloaded"
	}
	if outcome.Status == http.StatusServiceUnavailable {
		return "error_refused"
	}
	return "error_passed"
}

// limit counts the decision on a limit of the policy.
func (c *policyCounters) limit(m *policy.Mark, d *ratelimit.Decision, outcome *respond.Outcome) {
	name := "allowed"
	switch {
	case d.Source == ratelimit.Undecided:
		return
	case m.Shadow && d.Allowed:
		name = "would_allow"
	case m.Shadow:
		name = "would_deny"
	case !d.Allowed:
		name = "denied"
	case outcome.Status != 0:
		return
	case m.Overage && outcome.Overage > 0 && d.Remaining == 0:
		name = "overage"
	}
	c.limits.WithLabelValues(m.Rule, m.Limit, name, d.Source.String()).Inc()
}
