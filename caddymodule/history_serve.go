package caddymodule

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// recorder is how a handler records its requests.
type recorder struct {
	writer *history.Writer
	audit  history.Audit // of the handler, for what the policy says

	// A secret is a part of what would be recorded: see hide.
	hidesUser, hidesHost, hidesPath bool
}

// openHistory sets where the handler records its requests, if it does, and which of them are in
// the audit log. It returns the store of the history, nil without one.
func (h *Handler) openHistory(app *App) (*store, error) {
	h.recorder = nil
	unset := history.Audit{Level: history.AuditOff}
	if app.History != nil {
		unset.Level = history.AuditDenied
	}
	own, err := edge.ParseAudit(h.Audit, unset)
	if err != nil {
		return nil, err
	}
	most := own
	for i, z := range h.zones {
		z.audit = own
		if at := i - (len(h.zones) - len(h.Zones)); at >= 0 {
			if z.audit, err = edge.ParseAudit(h.Zones[at].Audit, own); err != nil {
				return nil, err
			}
		}
		most = edge.MoreAudit(most, z.audit)
	}
	at, err := app.historyStore(h.store)
	if err != nil {
		return nil, err
	}
	if most.Level == history.AuditOff && (app.History == nil || at.db == nil) {
		return nil, nil
	}
	r := &recorder{audit: own}
	if r.writer, err = app.history(at); err != nil {
		return nil, err
	}
	r.hide(h)
	h.recorder = r
	return at, nil
}

// hide finds out what is not recorded, because the API key of the policy, or a key that is hashed
// by the configuration, has a placeholder of it.
func (r *recorder) hide(h *Handler) {
	var names []string
	if h.policy != nil {
		names = append(names, h.policy.keys...)
	}
	rules := []*LimitSettings{&h.LimitSettings}
	for _, z := range h.Zones {
		rules = append(rules, &z.LimitSettings)
	}
	for _, rule := range rules {
		if rule.HashKey != nil && *rule.HashKey {
			hidden, _ := placeholdersIn(expandShorthands(rule.Key))
			names = append(names, hidden...)
		}
	}
	has := func(prefix string) bool {
		return slices.ContainsFunc(names, func(name string) bool {
			return strings.HasPrefix(name, prefix) && !strings.HasPrefix(name, queryPrefix)
		})
	}
	r.hidesUser = has("http.auth.")
	r.hidesHost = has("http.request.host")
	r.hidesPath = has(uriPrefix) || has("http.request.orig_uri")
}

// auditOf is the audit of a request with these hits.
func (r *recorder) auditOf(h *Handler, hits *requestHits) history.Audit {
	audit := history.Audit{}
	if h.policy != nil {
		audit = r.audit
	}
	for _, z := range hits.zones {
		audit = edge.MoreAudit(audit, z.audit)
	}
	return audit
}

// record records a request that came at a time. The record is in hits, so that it needs no memory of its own.
func (r *recorder) record(h *Handler, req *http.Request, repl *caddy.Replacer, hits *requestHits, outcome *edge.Outcome, asked time.Time) {
	record := &hits.record
	record.Time = time.Now()
	record.Duration = record.Time.Sub(asked)
	record.Method = req.Method
	record.Audit = r.auditOf(h, hits)
	record.Watched = history.IsWatched(r.writer)
	if !r.hidesUser {
		record.User, _ = repl.GetString("http.auth.user.id") // "" if no authentication has run
	}
	var said *policy.Verdict
	key := ""
	if h.policy != nil {
		said = &hits.policy
		key = policy.Bearer(h.policy.key.of(repl))
		record.Address, record.Host, record.Path, record.Route = hits.facts.Address, hits.facts.Host, hits.facts.Path, hits.facts.Route
	} else {
		record.Address = clientAddress(req)
		record.Host = policy.NormalHost(req.Host)
	}
	if record.Path == "" { // also if it is ambiguous
		record.Path = edge.Path(req.URL.EscapedPath())
	}
	if r.hidesHost {
		record.Host = ""
	}
	if r.hidesPath {
		record.Path = ""
	}
	edge.HideKeys(record, outcome, said, key)
	edge.SetRecord(record, outcome, hits.hits, hits.decisions, said)
	history.Add(r.writer, record)
	edge.AddShadows(r.writer, record, outcome, hits.hits, hits.decisions, &hits.policy)
	*record = history.Record{}
}
