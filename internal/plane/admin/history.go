package admin

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// UserUsage is what a user did on some days, in UTC. Rows have the requests, also those that were refused; how many
// were refused; and the last request, NULL if there was none. Those of limits have the units that these charged, and what
// was settled.
type UserUsage struct {
	User string `json:"user"`
	// First and Last are the first and the last day.
	First string `json:"first"`
	Last  string `json:"last"`
	// Days are those with a request, Keys the API keys, 0 for requests without one, and Total is all.
	Days   []Row `json:"days"`
	Keys   []Row `json:"keys"`
	Limits []Row `json:"limits"`
	Total  Row   `json:"total"`
}

// UsageOf returns what a user did on the days of a period, the first day first. A day counts as
// a whole if the period has a part of it.
func (d *Database) UsageOf(ctx context.Context, user string, p Period) (UserUsage, error) {
	u := UserUsage{User: user, First: p.From.UTC().Format(time.DateOnly), Last: p.Until.Add(-time.Microsecond).UTC().Format(time.DateOnly)}
	found, err := d.Ask(ctx, `SELECT day::text, key_id, prefix, nullif(limit_name, '') AS limit_name,
	requests, refused, charged, settled, last_request
FROM rate_limit_usage_between($1, $2::text::date, $3::text::date)`, user, u.First, u.Last)
	for _, r := range found {
		switch {
		case r.Get("day") != nil:
			u.Days = append(u.Days, r.only("day", "requests", "refused", "last_request"))
		case r.Get("key_id") != nil:
			u.Keys = append(u.Keys, r.only("key_id", "requests", "refused", "last_request"))
		case r.Get("prefix") == nil:
			u.Total = r.only("requests", "refused", "last_request")
		case r.Text("prefix") != "":
			u.Limits = append(u.Limits, r.only("prefix", "limit_name", "requests", "refused", "charged", "settled",
				"last_request"))
		}
	}
	return u, err
}

// Period is a part of the history. From belongs to it, Until does not.
type Period struct{ From, Until time.Time }

const wantAgo = "a duration before now such as 30m, 24h or 7d, or " + wantTime

// ParseAgo reads a point in time of the past: a duration before now, which may be in years, or a time
// as ParseTime reads it. The error is a *ratelimit.FieldError about the field.
func ParseAgo(field, text string, now time.Time) (time.Time, error) {
	if age, err := settings.ParseAge(text); err == nil {
		return now.Add(-age), nil
	}
	t, err := ParseTime(field, text)
	if err != nil {
		return t, &ratelimit.FieldError{Field: field, Value: text, Want: wantAgo}
	}
	return t, nil
}

// ParsePeriod reads the flags --since and --until. An until of "" is now. The error is a
// *ratelimit.FieldError.
func ParsePeriod(since, until string, now time.Time) (Period, error) {
	p := Period{Until: now}
	var err error
	if p.From, err = ParseAgo("--since", since, now); err != nil {
		return p, err
	}
	if until != "" {
		if p.Until, err = ParseAgo("--until", until, now); err != nil {
			return p, err
		}
	}
	if !p.From.Before(p.Until) {
		return p, &ratelimit.FieldError{Field: "--since", Value: since, Want: "before the end, " + utc(p.Until)}
	}
	return p, nil
}

// utc is a time for people.
func utc(t time.Time) string { return t.UTC().Format(time.DateTime) + "Z" }

// ParseMonth reads a month such as 2026-11, in UTC. "" is the month of now. The error is a
// *ratelimit.FieldError about the field.
func ParseMonth(field, text string, now time.Time) (Period, error) {
	begin := time.Date(now.UTC().Year(), now.UTC().Month(), 1, 0, 0, 0, 0, time.UTC)
	if text != "" {
		var err error
		if begin, err = time.Parse("2006-01", text); err != nil {
			return Period{}, &ratelimit.FieldError{Field: field, Value: text, Want: "a month such as 2026-11"}
		}
	}
	return Period{begin, begin.AddDate(0, 1, 0)}, nil
}

// Upkept is what an upkeep of the history did.
type Upkept = history.UpkeepReport

// Upkeep makes partitions ahead, rolls up the metrics, and deletes what is past its retention, as
// the proxies do about once a minute. With an error it also returns what it has done.
func (d *Database) Upkeep(ctx context.Context) (Upkept, error) {
	now, err := d.Now(ctx)
	if err != nil {
		return Upkept{}, err
	}
	db, err := d.proxyDB()
	if err != nil {
		return Upkept{}, err
	}
	defer db.Close()
	did, err := history.Upkeep(ctx, db, now)
	return did, d.failure(err)
}

// Horizon is a number below which all transactions are over. Transactions become visible in another order than they
// begin and write: what a list has not had before belongs to one from the horizon on of a look before.
func (d *Database) Horizon(ctx context.Context) (int64, error) {
	least, err := value[int64](ctx, d, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
	if err != nil {
		return 0, err
	}
	return *least, nil
}

// newRowsSQL is whether a row is of a transaction from $11 on. xmin has the last 32 bits of the number.
const newRowsSQL = `(((SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint) - xmin::text::bigint) & 4294967295) <=
	(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint) - $11::bigint`
