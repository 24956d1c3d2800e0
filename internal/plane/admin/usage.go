package admin

import (
	"context"
	"time"
)

// Used is how much a user or one of its keys did.
type Used struct {
	// Requests are all requests, also those that were refused. Cost is the sum of the costs of
	// those that passed.
	Requests int64 `json:"requests"`
	Cost     int64 `json:"cost"`
	Refused  int64 `json:"refused"`
	// LastRequest is nil if there was none.
	LastRequest *time.Time `json:"last_request"`
}

func (u *Used) add(more *Used) {
	u.Requests += more.Requests
	u.Cost += more.Cost
	u.Refused += more.Refused
	if more.LastRequest != nil && (u.LastRequest == nil || more.LastRequest.After(*u.LastRequest)) {
		u.LastRequest = more.LastRequest
	}
}

// UsedOnDay is what a user did on a day in UTC, such as 2026-11-20.
type UsedOnDay struct {
	Day string `json:"day"`
	Used
}

// UsedByKey is what a user did with an API key. KeyID is 0 for requests without one.
type UsedByKey struct {
	KeyID int64 `json:"key_id"`
	Used
}

// UserUsage is what a user did on some days, in UTC.
type UserUsage struct {
	User string `json:"user"`
	// First and Last are the first and the last day.
	First string      `json:"first"`
	Last  string      `json:"last"`
	Days  []UsedOnDay `json:"days"`
	Keys  []UsedByKey `json:"keys"`
	Total Used        `json:"total"`
}

// UsageOf returns what a user did on the days of a period, the first day first. A day counts as
// a whole if the period has a part of it.
func (d *Database) UsageOf(ctx context.Context, user string, p Period) (UserUsage, error) {
	u := UserUsage{
		User: user, First: p.From.UTC().Format(time.DateOnly), Last: p.Until.Add(-time.Microsecond).UTC().Format(time.DateOnly),
		Days: []UsedOnDay{}, Keys: []UsedByKey{},
	}
	// One row for each day, and one for each key: its day is "".
	found, err := rows[struct {
		Day   string
		KeyID int64
		Used
	}](ctx, d, `SELECT coalesce(day::text, ''), coalesce(key_id, 0), sum(requests)::bigint, sum(cost)::bigint, sum(refused)::bigint, max(last_request)
FROM rate_limit_usage WHERE user_id = $1 AND day BETWEEN $2::text::date AND $3::text::date
GROUP BY GROUPING SETS ((day), (key_id)) ORDER BY 1, 2`, user, u.First, u.Last)
	if err != nil {
		return u, err
	}
	for i := range found {
		r := &found[i]
		if r.Day == "" {
			u.Keys = append(u.Keys, UsedByKey{r.KeyID, r.Used})
			continue
		}
		u.Days = append(u.Days, UsedOnDay{r.Day, r.Used})
		u.Total.add(&r.Used)
	}
	return u, nil
}
