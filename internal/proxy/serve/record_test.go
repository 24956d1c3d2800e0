package serve_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
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

// recordTest is an outcome of a request, and its record.
type recordTest struct {
	outcome   respond.Outcome
	hits      []ratelimit.Hit
	decisions []ratelimit.Decision
	verdict   *policy.Verdict // nil without a policy
	err       error           // of the store
	want      history.Record
}

func recordTests() map[string]recordTest {
	key := ratelimit.DigestKey("prl_secret")
	hits, decisions, verdict := requestOnFiveLimits()
	allowed := respond.Outcome{Hit: 0, Decision: &decisions[0]}
	refused := ratelimit.Decision{Quota: 10, RetryAfter: time.Minute, Source: ratelimit.FromRemembered}
	nobody := &policy.Verdict{Tier: "anonymous"}
	tests := map[string]recordTest{
		"one limit": {
			outcome:   allowed,
			hits:      hits[:1],
			decisions: decisions[:1],
			want: history.Record{Prefix: "web", Key: "192.0.2.1", Cost: 2, Quota: 10, Remaining: 5,
				Source: ratelimit.FromLease},
		},
		"a limit refuses": {
			outcome:   respond.Outcome{Kind: outcome.Limited, Status: 429, Hit: 1, Decision: &refused},
			hits:      hits[:2],
			decisions: decisions[:2],
			want: history.Record{Outcome: outcome.Limited, Prefix: "key", Key: key, Cost: 1, Quota: 10,
				Status: 429, RetryAfter: time.Minute, Source: ratelimit.FromRemembered,
				Also: []string{"web", "192.0.2.1"}},
		},
		"two limits": {
			outcome:   respond.Outcome{Hit: 1, Decision: &decisions[1]},
			hits:      hits[:2],
			decisions: decisions[:2],
			want: history.Record{Prefix: "key", Key: key, Cost: 1, Quota: 10, Remaining: 5,
				Source: ratelimit.FromLease, Also: []string{"web", "192.0.2.1"}},
		},
		"a policy": {
			outcome:   allowed,
			hits:      hits,
			decisions: decisions,
			verdict:   verdict,
			want: history.Record{Prefix: "web", Key: "192.0.2.1", User: "alice", Tier: "free", KeyID: 7,
				Cost: 2, Quota: 10, Remaining: 5, Source: ratelimit.FromLease,
				Also: []string{"key", key, "rule/plan", "alice", "rule/trial", "alice"}},
		},
		"a rule refuses": {
			outcome: respond.Outcome{Kind: outcome.Limited, Status: 402, Hit: 3, Decision: &refused,
				Wait: time.Hour},
			hits:      hits,
			decisions: decisions,
			verdict:   verdict,
			want: history.Record{Outcome: outcome.Limited, Prefix: "rule/plan/per_day", Key: "alice",
				User: "alice", Tier: "free", KeyID: 7, Cost: 3, Quota: 10, Status: 402,
				RetryAfter: time.Minute, Source: ratelimit.FromRemembered,
				Also: []string{"web", "192.0.2.1", "key", key, "rule/trial", "alice"}},
		},
		"a shadow rule alone": {
			outcome:   respond.Outcome{Hit: 1},
			hits:      hits[4:],
			decisions: decisions[4:],
			verdict:   &policy.Verdict{User: "alice", Rule: "trial", Terms: verdict.Terms[2:]},
			want:      history.Record{User: "alice", Also: []string{"rule/trial", "alice"}},
		},
		"free": {
			verdict: nobody,
			want:    history.Record{Tier: "anonymous"},
		},
		"exempt": {
			verdict: &policy.Verdict{Exempt: true, Rule: "well"},
			want:    history.Record{Prefix: "rule/well"},
		},
		"banned": {
			outcome: respond.Outcome{Kind: policy.Banned.Outcome(), Status: 403, Reason: policy.Banned,
				Wait: time.Hour},
			verdict: &policy.Verdict{User: "mallory"},
			want: history.Record{Outcome: outcome.Blocked, Reason: "banned", User: "mallory", Status: 403,
				RetryAfter: time.Hour},
		},
		"blocked": {
			outcome: respond.Outcome{Kind: policy.Blocked.Outcome(), Status: 451, Reason: policy.Blocked},
			verdict: &policy.Verdict{Rule: "shut", Refusing: &policy.Terms{Rule: "shut"}},
			want: history.Record{Outcome: outcome.Blocked, Reason: "blocked", Prefix: "rule/shut",
				Status: 451},
		},
		"no quota": {
			outcome: respond.Outcome{Kind: policy.NoQuota.Outcome(), Status: 429, Reason: policy.NoQuota},
			verdict: &policy.Verdict{Rule: "plan", Refusing: &policy.Terms{Rule: "plan", Limit: "per_day"}},
			want: history.Record{Outcome: outcome.Limited, Reason: "no_quota", Prefix: "rule/plan/per_day",
				Status: 429},
		},
		"too late, and it passes": {
			err:  ratelimit.ErrTimeout,
			hits: hits[:1],
			want: history.Record{Outcome: outcome.Failed, Reason: "timeout", Prefix: "web", Key: "192.0.2.1",
				Cost: 2},
		},
		"too late, and a shadow comes first": {
			err:  ratelimit.ErrTimeout,
			hits: []ratelimit.Hit{hits[4], hits[0]},
			want: history.Record{Outcome: outcome.Failed, Reason: "timeout", Prefix: "web", Key: "192.0.2.1",
				Cost: 2, Also: []string{"rule/trial", "alice"}},
		},
		"no database, and it is refused": {
			outcome: serve.NoDecision(settings.Deny,
				errors.Join(ratelimit.ErrUnavailable, errors.New("password hunter2"))),
			verdict: nobody,
			want: history.Record{Outcome: outcome.Failed, Reason: "unavailable", Tier: "anonymous",
				Status: 503},
		},
		"a cost of 0": {
			outcome:   respond.Outcome{Decision: &decisions[0]},
			hits:      []ratelimit.Hit{{Limit: hits[0].Limit, Key: "k", Cost: 1, Peek: true}},
			decisions: decisions[:1],
			want: history.Record{Prefix: "web", Key: "k", Quota: 10, Remaining: 5,
				Source: ratelimit.FromLease},
		},
	}
	for reason, status := range map[policy.Reason]int{policy.UnknownKey: 401, policy.KeyExpired: 401,
		policy.KeyRevoked: 401, policy.AmbiguousPath: 400} {
		tests[fmt.Sprint(reason)] = recordTest{
			outcome: respond.Outcome{Kind: reason.Outcome(), Status: status, Reason: reason},
			verdict: nobody,
			want: history.Record{Outcome: outcome.Rejected, Reason: fmt.Sprint(reason), Tier: "anonymous",
				Status: status},
		}
	}
	return tests
}

// For each outcome of recordTests, the history gets a record with the fields of the request.
func TestRecordDescribesRequest(t *testing.T) {
	for name, c := range recordTests() {
		q := &serve.Request{Outcome: c.outcome, Hits: c.hits, Decisions: c.decisions, Err: c.err}
		if c.verdict != nil {
			q.Verdict = *c.verdict
		}
		ofZones := len(c.hits) - len(q.Verdict.Terms)
		q.Terms = append(slices.Repeat([]*policy.Terms{{Status: 429}}, ofZones), q.Verdict.Terms...)
		audit := option.Audit{Level: option.AuditAll}
		got := serve.RecordOf(q, audit, "")
		c.want.Audit = audit
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got\n%+v, want\n%+v", name, got, c.want)
		}
	}
}

// A record has the user that the proxy authenticated, unless the policy has a user.
func TestRecordHasAuthenticatedUser(t *testing.T) {
	for q, want := range map[*serve.Request]string{
		{}: "ann", {Verdict: policy.Verdict{User: "bob"}}: "bob",
	} {
		if r := serve.RecordOf(q, option.Audit{}, "ann"); r.User != want {
			t.Errorf("the record has the user %q, want %q", r.User, want)
		}
	}
}
