package caddymodule

import (
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// policyCounters count what the policy decides. Users and keys are not labels.
type policyCounters struct {
	requests *prometheus.CounterVec
	limits   *prometheus.CounterVec
}

// newPolicyMetrics registers the metrics of policies.
func newPolicyMetrics(m *metrics, registry *prometheus.Registry) error {
	m.policy = &policyCounters{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "policy_requests_total",
			Help: "Requests by what the policy says: limited, free (no rule matches), exempt, unknown_key, key_expired, key_revoked, banned, blocked, no_quota, " +
				"error_passed and error_refused (no decision was possible).",
		}, []string{"outcome"}),
		limits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "policy_decisions_total",
			Help: "Requests by rule, limit, outcome and source of the decision. outcome: allowed (charged to this limit), denied (refused by this limit), " +
				"overage (charged beyond the quota), would_allow and would_deny (of a shadow rule), " +
				"error_passed and error_refused (no decision was possible), paused (limits are paused). " +
				"source: postgres, blocked (known to be used up), lease (units charged in advance) or none (no decision).",
		}, []string{"rule", "limit", "outcome", "source"}),
	}
	gauge := func(name, help string, of func(watchedPolicy, policy.Stats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, func() float64 { return m.policyMax(of) })
	}
	return errors.Join(
		registry.Register(m.policy.requests), registry.Register(m.policy.limits),
		registry.Register(gauge("policy_rules", "Rules that have an effect.", func(_ watchedPolicy, s policy.Stats) float64 { return float64(s.Rules) })),
		registry.Register(gauge("policy_wrong_rules", "Rules and overrides that cannot be used.", func(_ watchedPolicy, s policy.Stats) float64 { return float64(s.Wrong) })),
		registry.Register(gauge("policy_identities", "API keys and users that are remembered.", func(_ watchedPolicy, s policy.Stats) float64 { return float64(s.Identities) })),
		registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "policy_lookups_total", Help: "Statements that looked up API keys and users.",
		}, m.policyLookUps)),
		registry.Register(gauge("policy_version", "The number of the last change of the policy that is obeyed.",
			func(_ watchedPolicy, s policy.Stats) float64 { return float64(s.Applied) })),
		registry.Register(gauge("policy_age_seconds", "How long ago the database last answered whether the policy has changed.", watchedPolicy.age)),
	)
}

// watchedPolicy is a policy, since when this config uses it, and how many statements it had sent
// then. A policy can outlive the config that opened it, and the counters of a config start at 0.
type watchedPolicy struct {
	*edge.Policy
	since   time.Time
	lookUps int64
}

// age is how old what the policy knows is, in seconds.
func (p watchedPolicy) age(s policy.Stats) float64 {
	if s.Polled.IsZero() {
		return time.Since(p.since).Seconds()
	}
	return time.Since(s.Polled).Seconds()
}

// watchPolicy adds a policy to those of the gauges.
func (m *metrics) watchPolicy(p *edge.Policy) {
	lookUps := p.Stats().LookUps
	m.mu.Lock()
	defer m.mu.Unlock()
	m.policies = append(m.policies, watchedPolicy{p, time.Now(), lookUps})
}

// policyMax is the highest value of all policies.
func (m *metrics) policyMax(of func(watchedPolicy, policy.Stats) float64) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	highest := 0.0
	for _, p := range m.policies {
		highest = max(highest, of(p, p.Stats()))
	}
	return highest
}

// policyLookUps is how many statements all policies have sent to look up API keys and users.
func (m *metrics) policyLookUps() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := int64(0)
	for _, p := range m.policies {
		sum += p.Stats().LookUps - p.lookUps
	}
	return float64(sum)
}

// decided counts what the policy says about a request.
func (c *policyCounters) decided(o *policy.Outcome) {
	outcome := "free"
	switch {
	case o.Refused():
		outcome = o.Reason.String()
	case o.Exempt:
		outcome = "exempt"
	case len(o.Hits) > 0:
		outcome = "limited"
	}
	c.requests.WithLabelValues(outcome).Inc()
}

// failed counts a request that the policy could not decide.
func (c *policyCounters) failed(outcome *edge.Outcome) {
	c.requests.WithLabelValues(withoutDecision(outcome)).Inc()
}

// undecided counts a request for which no decision on the limits of the policy was possible.
func (c *policyCounters) undecided(marks []*policy.Mark, outcome *edge.Outcome) {
	for _, m := range marks {
		if !m.Shadow {
			c.limits.WithLabelValues(m.Rule, m.Limit, withoutDecision(outcome), noSource).Inc()
		}
	}
}

// paused counts a request that passes the limits of the policy because they are paused.
func (c *policyCounters) paused(marks []*policy.Mark) {
	for _, m := range marks {
		if !m.Shadow {
			c.limits.WithLabelValues(m.Rule, m.Limit, "paused", noSource).Inc()
		}
	}
}

// withoutDecision says what happened to a request without a decision.
func withoutDecision(outcome *edge.Outcome) string {
	if outcome.Status == http.StatusServiceUnavailable {
		return "error_refused"
	}
	return "error_passed"
}

// limit counts the decision on a limit of the policy.
func (c *policyCounters) limit(m *policy.Mark, d *ratelimit.Decision, outcome *edge.Outcome) {
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
