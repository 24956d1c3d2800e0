package admin

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

// Audited is a row of the audit log. A field that does not apply to the request is nil.
type Audited struct {
	Time     time.Time `json:"time"`
	Decision string    `json:"decision"`
	// Reason says more about a refusal.
	Reason *string `json:"reason"`
	// Prefix is that of a limit in a configuration, or rule/ and the name of a rule, and ""
	// if no limit applied. Limit is the name of the rule's limit.
	Prefix string  `json:"prefix"`
	Limit  *string `json:"limit"`
	Key    *string `json:"key"`
	User   *string `json:"user"`
	KeyID  *int64  `json:"key_id"`
	Tier   *string `json:"tier"`
	// Address is the address of the client, or its network.
	Address *string `json:"address"`
	Host    *string `json:"host"`
	Method  *string `json:"method"`
	Path    *string `json:"path"`
	Node    string  `json:"node"`
	Region  *string `json:"region"`
	Status  *int32  `json:"status"`
	Cost    int64   `json:"cost"`
	// Count is how many equal refusals of one second the row stands for, and Weight how many
	// requests each of them stands for.
	Count     int64   `json:"count"`
	Weight    float64 `json:"weight"`
	Quota     *int64  `json:"quota"`
	Remaining *int64  `json:"remaining"`
	// RetryAfter and Duration are in seconds.
	RetryAfter *float64 `json:"retry_after"`
	Duration   float64  `json:"duration"`
	// Also are the other limits that were asked: prefix, key, prefix, key and so on.
	Also []string `json:"also"`
	// ID is a number that no other row has.
	ID *int64 `json:"id"`
}

// AuditQuery says which rows of the audit log are wanted. Its zero fields restrict nothing.
type AuditQuery struct {
	Period
	User  string
	KeyID int64
	// Prefix is that of a limit in a configuration. For a rule it is rule/ and the name, and
	// may have a slash and the name of a limit; rule/ without a name is all rules.
	Prefix    string
	Decisions []string
	// Address finds the rows whose address is in this network, or whose network overlaps it.
	Address    netip.Prefix
	Host, Node string
	// Key finds also the rows of a counter with this key, as it is given or as it is stored. With a User, one of
	// the two is enough.
	Key string
	// Since is a Horizon: only rows of transactions from it on are found, and maybe others.
	Since int64
	// Most is how many rows are returned at most. It must be above 0.
	Most int
}

// Decisions are the names of the decisions in the audit log.
func Decisions() []string {
	var names []string
	for d := history.Allowed; d <= history.Failed; d++ {
		names = append(names, d.String())
	}
	return names
}

// where collects conditions and their parameters.
type where struct {
	sql  []string
	args []any
}

// add adds a condition, with %d for the number of its parameter.
func (w *where) add(condition string, arg any) {
	w.args = append(w.args, arg)
	w.sql = append(w.sql, fmt.Sprintf(condition, len(w.args)))
}

// text adds a condition about a text, unless the text is empty.
func (w *where) text(condition, text string) {
	if text != "" {
		w.add(condition, text)
	}
}

// period adds a period. Its ends are parameters, so that the server looks only at the partitions
// of these days.
func (w *where) period(p Period) {
	w.add("time >= $%d::timestamptz", p.From)
	w.add("time < $%d::timestamptz", p.Until)
}

// prefix adds a prefix, as in AuditQuery.Prefix.
func (w *where) prefix(prefix string) {
	name, isRule := strings.CutPrefix(prefix, rulePrefix)
	if rule, limit, found := strings.Cut(name, "/"); isRule && found {
		w.add("prefix = $%d::text", rulePrefix+rule)
		w.text("limit_name = $%d::text", limit)
	} else if isRule && name == "" {
		w.add("starts_with(prefix, $%d::text)", prefix)
	} else {
		w.text("prefix = $%d::text", prefix)
	}
}

func (w *where) String() string { return strings.Join(w.sql, " AND ") }

// Audit returns rows of the audit log, the newest first.
func (d *Database) Audit(ctx context.Context, q *AuditQuery) ([]Audited, error) {
	l := d.log(ctx, q)
	found := list[Audited](l.work, fmt.Sprintf(`SELECT time, decision, reason, prefix, limit_name, key, user_id, key_id, tier,
	abbrev(address), host, method, path, node, region, status, cost, count, weight, quota, remaining, retry_after_ms / 1000.0::float8, duration_us / 1000000.0::float8, also, id
FROM rate_limit_audit WHERE %s ORDER BY time DESC LIMIT %d`, &l.where, q.Most), l.args...)
	l.names.show(found)
	return found, l.err
}

// logWork asks the audit log for the rows of a query.
type logWork struct {
	*work
	where
	names renamed
}

func (d *Database) log(ctx context.Context, q *AuditQuery) *logWork {
	l := &logWork{work: d.work(ctx)}
	l.names, l.err = d.renamedRules(ctx)
	l.where = *q.where(l.names)
	return l
}

// where are the conditions of a query.
func (q *AuditQuery) where(names renamed) *where {
	w := &where{}
	w.period(q.Period)
	w.prefix(names.stored(q.Prefix))
	if q.Key == "" {
		w.text("user_id = $%d::text", q.User)
	} else {
		w.args = append(w.args, q.User)
		w.add(fmt.Sprintf("(user_id = $%d::text OR key = ANY ($%%d::text[]))", len(w.args)), storedKeys(q.Key))
	}
	w.text("host = $%d::text", q.Host)
	w.text("node = $%d::text", q.Node)
	if q.KeyID != 0 {
		w.add("key_id = $%d::bigint", q.KeyID)
	}
	if len(q.Decisions) > 0 {
		w.add("decision = ANY ($%d::text[])", q.Decisions)
	}
	if q.Address.IsValid() {
		w.add("address && $%d::text::inet", q.Address.String())
	}
	if q.Since != 0 {
		w.add(newRowsSQL, q.Since)
	}
	return w
}

// Sender is a counter and a user, and what they did in a period.
type Sender struct {
	// Prefix is that of a limit in a configuration, or rule/ and the name of a rule, and ""
	// if no limit applied.
	Prefix string `json:"prefix"`
	// Key is that of the counter. Of requests without a counter, it is the address of the
	// client. It is nil if neither is known.
	Key *string `json:"key"`
	// User is nil for nobody.
	User *string `json:"user"`
	// Requests are all requests, and Refused those of them that were refused. A sample is
	// counted as what it stands for.
	Requests int64     `json:"requests"`
	Refused  int64     `json:"refused"`
	Last     time.Time `json:"last"`
}

// refusedSQL is the condition for a row of refused requests in the audit log. Requests without a
// decision are not among them.
const refusedSQL = "decision IN ('limited', 'blocked', 'rejected')"

// TopSince returns the senders with the most requests in a period, by the audit log, at most so
// many. prefix is as in AuditQuery; "" is all.
func (d *Database) TopSince(ctx context.Context, p Period, prefix string, most int) ([]Sender, error) {
	l := d.log(ctx, &AuditQuery{Period: p, Prefix: prefix})
	// A row of decision shadow stands beside the row of its request.
	found := list[Sender](l.work, fmt.Sprintf(`SELECT prefix, coalesce(key, host(address)), user_id, `+requestsSQL+`, `+refusalsSQL+`, max(time)
FROM rate_limit_audit WHERE %s AND decision <> 'shadow' GROUP BY 1, 2, 3
ORDER BY 4 DESC, 5 DESC, 6 DESC, 1, 2, 3 LIMIT %d`, &l.where, most), l.args...)
	for i := range found {
		found[i].Prefix = l.names.shown(found[i].Prefix)
	}
	return found, l.err
}

// requestsSQL, refusalsSQL and failuresSQL are how many requests rows stand for, how many of them were refused, and how
// many had no decision.
const (
	requestsSQL = "round(sum(count * weight))::bigint"
	refusalsSQL = "round(coalesce(sum(count * weight) FILTER (WHERE " + refusedSQL + "), 0))::bigint"
	failuresSQL = "coalesce(sum(count) FILTER (WHERE decision = 'error'), 0)::bigint"
)

// Name is what the requests of one sender or of one limit were. A sample is counted as what it stands for.
type Name struct {
	Name     string `json:"name"`
	Requests int64  `json:"requests"`
	Refused  int64  `json:"refused"`
	Failed   int64  `json:"failed"`
}

// TopPaths returns the paths with the most requests in a period, with their hosts, by the audit log, at most so many. prefix is as in
// AuditQuery; "" is all.
func (d *Database) TopPaths(ctx context.Context, p Period, prefix string, most int) ([]Name, error) {
	l := d.log(ctx, &AuditQuery{Period: p, Prefix: prefix})
	found := list[Name](l.work, fmt.Sprintf(`SELECT coalesce(host, '') || path, `+requestsSQL+`, `+refusalsSQL+`, `+failuresSQL+`
FROM rate_limit_audit WHERE %s AND decision <> 'shadow' AND path IS NOT NULL GROUP BY 1 ORDER BY 2 DESC, 3 DESC, 1 LIMIT %d`, &l.where, most), l.args...)
	return found, l.err
}

// CountedName is what the requests of a sender or a limit were. List is "keys", "users" or "addresses", by the audit log;
// "reasons" for requests that no limit refused, by the audit log; "limits", of rules and of configurations, by the metrics; or
// "log" for all rows of the audit log together.
type CountedName struct {
	List string
	// Prefix is that of the limit that counts a key, and "" for what is no key.
	Prefix                    string
	Name                      string
	Requests, Refused, Failed int64
}

// topSQL reads each row of the audit log once. Of senders it returns those with the most refusals and those with the most
// requests.
const topSQL = `WITH log AS (
	SELECT prefix, coalesce(key, host(address)) AS key, user_id, abbrev(address) AS address, CASE WHEN prefix = '' AND ` + refusedSQL + ` THEN reason END AS reason, decision, count, weight
	FROM rate_limit_audit WHERE %[1]s AND decision <> 'shadow'
), counted AS (
	SELECT CASE WHEN grouping(key) = 0 THEN 'keys' WHEN grouping(user_id) = 0 THEN 'users' WHEN grouping(address) = 0 THEN 'addresses' WHEN grouping(reason) = 0 THEN 'reasons' ELSE 'log' END AS list,
		prefix, coalesce(key, user_id, address, reason) AS name, ` + requestsSQL + ` AS requests, ` + refusalsSQL + ` AS refused, ` + failuresSQL + ` AS failed
	FROM log GROUP BY GROUPING SETS ((prefix, key), (user_id), (address), (reason), ())
), ranked AS (
	SELECT *, row_number() OVER (PARTITION BY list ORDER BY refused DESC, requests DESC, name, prefix) AS refusals, row_number() OVER (PARTITION BY list ORDER BY requests DESC, name, prefix) AS place
	FROM counted WHERE name IS NOT NULL OR list = 'log'
)
SELECT list, coalesce(prefix, ''), coalesce(name, ''), coalesce(requests, 0), refused, failed FROM ranked WHERE least(refusals, place) <= %[2]d
UNION ALL SELECT 'limits', '', prefix, sum(requests)::bigint, sum(limited + blocked + rejected)::bigint, sum(errors)::bigint FROM rate_limit_metrics
WHERE granularity = $%[3]d AND time >= $%[4]d::timestamptz AND time < $%[5]d::timestamptz GROUP BY prefix`

// TopNames returns what requests in a period that is Full were, by senders and limits: of each list of senders and of the
// reasons at most so many, with the most requests and with the most refusals, and all limits. A sample is counted as what it
// stands for.
func (d *Database) TopNames(ctx context.Context, p Period, most int) ([]CountedName, error) {
	l := d.log(ctx, &AuditQuery{Period: p})
	granularity, n := "minute", len(l.args)
	if p.isLong() {
		granularity = "hour"
	}
	found := list[CountedName](l.work, fmt.Sprintf(topSQL, &l.where, most, n+1, n+2, n+3), append(l.args, granularity, p.From, p.Until)...)
	for i := range found {
		switch n := &found[i]; n.List {
		case "keys":
			n.Prefix = l.names.shown(n.Prefix)
		case "limits":
			n.Name = l.names.shown(n.Name)
		}
	}
	return found, l.err
}

// Decided returns how many requests a query finds, by their decisions. A sample is counted as what it stands for.
func (d *Database) Decided(ctx context.Context, q *AuditQuery) (map[string]int64, error) {
	l := d.log(ctx, q)
	decided := map[string]int64{}
	for _, f := range list[struct {
		Decision string
		Requests int64
	}](l.work, fmt.Sprintf("SELECT decision, "+requestsSQL+" FROM rate_limit_audit WHERE %s GROUP BY 1", &l.where), l.args...) {
		decided[f.Decision] = f.Requests
	}
	return decided, l.err
}

// NearestRefusal returns when the request of a query was refused that is nearest to a time; nil: none was.
func (d *Database) NearestRefusal(ctx context.Context, q *AuditQuery, at time.Time) (*time.Time, error) {
	l := d.log(ctx, q)
	found := some[time.Time](l.work, fmt.Sprintf(`SELECT time FROM (
	(SELECT time FROM rate_limit_audit WHERE %[1]s AND `+refusedSQL+` AND time < $%[2]d::timestamptz ORDER BY time DESC LIMIT 1)
	UNION ALL (SELECT time FROM rate_limit_audit WHERE %[1]s AND `+refusedSQL+` AND time >= $%[2]d::timestamptz ORDER BY time LIMIT 1)) AS beside
ORDER BY greatest(time - $%[2]d::timestamptz, $%[2]d::timestamptz - time) LIMIT 1`, &l.where, len(l.args)+1), append(l.args, at)...)
	return first(found, l.err)
}

// renamed are the rules that have another name in their counters and in the history than in the
// policy: by that name, and by their own.
type renamed struct{ byCounter, byName map[string]string }

// renamedRules reads them. A database without a policy has none.
func (d *Database) renamedRules(ctx context.Context) (renamed, error) {
	r := renamed{map[string]string{}, map[string]string{}}
	if d.policy != "" {
		at, err := d.atPolicy(ctx)
		if err != nil {
			return r, err
		}
		return at.renamedRules(ctx)
	}
	if exists, err := d.hasTable(ctx, "rate_limit_rules"); err != nil || !exists {
		return r, err
	}
	found, err := rows[struct{ Name, Counter string }](ctx, d, "SELECT name, counter FROM rate_limit_rules WHERE counter <> name")
	for _, rule := range found {
		r.byCounter[rule.Counter], r.byName[rule.Name] = rule.Name, rule.Counter
	}
	return r, err
}

// stored is the prefix that the tables have in place of one with the name of a rule.
func (r *renamed) stored(prefix string) string { return exchange(r.byName, prefix) }

// shown is the prefix with the name of the rule in place of one that the tables have.
func (r *renamed) shown(prefix string) string { return exchange(r.byCounter, prefix) }

// exchange exchanges the name in a prefix rule/NAME or rule/NAME/LIMIT.
func exchange(names map[string]string, prefix string) string {
	rest, isRule := strings.CutPrefix(prefix, rulePrefix)
	name, limit, _ := strings.Cut(rest, "/")
	other, known := names[name]
	if !isRule || !known {
		return prefix
	}
	if len(name) < len(rest) {
		other += "/" + limit
	}
	return rulePrefix + other
}

// show exchanges the names in rows of the audit log.
func (r *renamed) show(all []Audited) {
	for i := range all {
		all[i].Prefix = r.shown(all[i].Prefix)
		for j := 0; j < len(all[i].Also); j += 2 {
			all[i].Also[j] = r.shown(all[i].Also[j])
		}
	}
}
