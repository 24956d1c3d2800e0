package serve_test

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Limits may be in memory, but the history may not.
func TestHistoryRequiresPostgres(t *testing.T) {
	site := new(serve.Site)
	dsns := &serve.DSNs{Limits: host.DSN{DSN: "memory"}}
	if _, err := site.DataSources(settings.Connection{}, dsns, "", &settings.History{}); err != nil {
		t.Errorf("limits in memory: error %v, want nil", err)
	}
	dsns = &serve.DSNs{Limits: host.DSN{DSN: "postgres://h/db"}, History: host.DSN{DSN: "memory"}}
	_, err := site.DataSources(settings.Connection{}, dsns, "", &settings.History{})
	if !strings.HasPrefix(fmt.Sprint(err), `history: dsn: "memory": `) {
		t.Errorf("a history in memory: error %v, want one about dsn", err)
	}
}

// requestOnFiveLimits returns the hits, decisions and verdict of a request on two limits of a configuration
// and three limits of a policy. The last limit belongs to a shadow rule.
func requestOnFiveLimits() ([]ratelimit.Hit, []ratelimit.Decision, *policy.Verdict) {
	limit := func(prefix string) *ratelimit.Limit {
		return &ratelimit.Limit{Prefix: prefix, Events: 10, Window: time.Minute}
	}
	hits := []ratelimit.Hit{
		{Limit: limit("web"), Key: "192.0.2.1", Cost: 2},
		{Limit: limit("key"), Key: "prl_secret", Cost: 1, Secret: true},
		{Limit: limit("rule/plan/per_hour"), Key: "alice", Cost: 3},
		{Limit: limit("rule/plan/per_day"), Key: "alice", Cost: 3},
		{Limit: limit("rule/trial/per_hour"), Key: "alice", Cost: 1, Independent: true},
	}
	decisions := make([]ratelimit.Decision, len(hits))
	for i := range decisions {
		decisions[i] = ratelimit.Decision{Allowed: true, Quota: 10, Remaining: 5, Source: ratelimit.FromLease}
	}
	v := &policy.Verdict{User: "alice", Tier: "free", KeyID: 7, Rule: "plan", Terms: []*policy.Terms{
		{Rule: "plan", Limit: "per_hour", Status: 429}, {Rule: "plan", Limit: "per_day", Status: 402},
		{Rule: "trial", Limit: "per_hour", Shadow: true, Status: 429},
	}}
	return hits, decisions, v
}

// recordTest is a request with an outcome.
type recordTest struct {
	outcome   respond.Outcome
	hits      []ratelimit.Hit
	decisions []ratelimit.Decision
	verdict   *policy.Verdict // nil without a policy
	err       error           // of the store
}

func recordTests() map[string]recordTest {
	hits, decisions, verdict := requestOnFiveLimits()
	refused := ratelimit.Decision{Quota: 10, RetryAfter: time.Minute, Source: ratelimit.FromRemembered}
	limited := func(status, hit int) respond.Outcome {
		return respond.Outcome{Kind: outcome.Limited, Status: status, Hit: hit, Decision: &refused,
			RetryAfter: time.Hour}
	}
	nobody := &policy.Verdict{Tier: "anonymous"}
	refusedBy := func(reason policy.Reason, status int, wait time.Duration) respond.Outcome {
		return respond.Outcome{Kind: reason.Outcome(), Status: status, Reason: reason, RetryAfter: wait}
	}
	peek := []ratelimit.Hit{{Limit: hits[0].Limit, Key: "k", Cost: 1, Peek: true}}
	lost := errors.Join(ratelimit.ErrUnavailable, errors.New("password hunter2"))
	tests := map[string]recordTest{
		"one limit":       {respond.Outcome{Decision: &decisions[0]}, hits[:1], decisions[:1], nil, nil},
		"a limit refuses": {limited(429, 1), hits[:2], decisions[:2], nil, nil},
		"two limits": {respond.Outcome{Hit: 1, Decision: &decisions[1]}, hits[:2], decisions[:2],
			nil, nil},
		"a policy":       {respond.Outcome{Decision: &decisions[0]}, hits, decisions, verdict, nil},
		"a rule refuses": {limited(402, 3), hits, decisions, verdict, nil},
		"a shadow rule alone": {respond.Outcome{Hit: 1}, hits[4:], decisions[4:],
			&policy.Verdict{User: "alice", Rule: "trial", Terms: verdict.Terms[2:]}, nil},
		"free":   {verdict: nobody},
		"exempt": {verdict: &policy.Verdict{Exempt: true, Rule: "well"}},
		"banned": {outcome: refusedBy(policy.Banned, 403, time.Hour),
			verdict: &policy.Verdict{User: "mallory"}},
		"blocked": {outcome: refusedBy(policy.Blocked, 451, 0),
			verdict: &policy.Verdict{Rule: "shut", Refusing: &policy.Terms{Rule: "shut"}}},
		"no quota": {outcome: refusedBy(policy.NoQuota, 429, 0),
			verdict: &policy.Verdict{Rule: "plan", Refusing: &policy.Terms{Rule: "plan", Limit: "per_day"}}},
		"too late, and it passes": {hits: hits[:1], err: ratelimit.ErrTimeout},
		"too late, and a shadow comes first": {hits: []ratelimit.Hit{hits[4], hits[0]},
			err: ratelimit.ErrTimeout},
		"no database, and it is refused": {outcome: serve.NoDecision(settings.Deny, lost),
			verdict: nobody},
		"a cost of 0": {respond.Outcome{Decision: &decisions[0]}, peek, decisions[:1],
			nil, nil},
	}
	for _, reason := range []policy.Reason{policy.UnknownKey, policy.KeyExpired, policy.KeyRevoked,
		policy.AmbiguousPath} {
		tests[string(reason)] = recordTest{outcome: refusedBy(reason, 401, 0), verdict: nobody}
	}
	return tests
}

// For each outcome of recordTests, the history gets a record with the fields of the request, and the user
// that the proxy authenticated, ann, unless the policy has a user.
func TestRecordDescribesRequest(t *testing.T) {
	text, tests := "", recordTests()
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		c := tests[name]
		q := &serve.Request{Outcome: c.outcome, Hits: c.hits, Decisions: c.decisions, Err: c.err}
		if c.verdict != nil {
			q.Verdict = *c.verdict
		}
		ofZones := len(c.hits) - len(q.Verdict.Terms)
		q.Terms = append(slices.Repeat([]*policy.Terms{{Status: 429}}, ofZones), q.Verdict.Terms...)
		r := reflect.ValueOf(serve.RecordOf(q, option.Audit{Level: option.AuditAll}, "ann"))
		text += name + "\n="
		for i := range r.NumField() {
			if field := r.Field(i); !field.IsZero() {
				text += fmt.Sprintf(" %s: %v;", r.Type().Field(i).Name, field)
			}
		}
		text += "\n"
	}
	golden.Check(t, "testdata/records.txt", text)
}
