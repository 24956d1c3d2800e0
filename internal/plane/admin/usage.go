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
	// One row for each day, one for each key, whose day is "", and one for the total, whose key is -1 as well.
	found, err := rows[struct {
		Day   string
		KeyID int64
		Used
	}](ctx, d, `SELECT coalesce(day::text, ''), coalesce(key_id, -1), coalesce(sum(requests), 0)::bigint, least(coalesce(sum(cost), 0), 9223372036854775807)::bigint,
	coalesce(sum(refused), 0)::bigint, max(last_request)
FROM rate_limit_usage WHERE user_id = $1 AND day BETWEEN $2::text::date AND $3::text::date
GROUP BY GROUPING SETS ((day), (key_id), ()) ORDER BY 1, 2`, user, u.First, u.Last)
	for _, r := range found {
		switch {
		case r.Day != "":
			u.Days = append(u.Days, UsedOnDay{r.Day, r.Used})
		case r.KeyID >= 0:
			u.Keys = append(u.Keys, UsedByKey{r.KeyID, r.Used})
		default:
			u.Total = r.Used
		}
	}
	return u, err
}
