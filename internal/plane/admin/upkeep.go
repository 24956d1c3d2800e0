package admin

import (
	"context"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

// Upkept is what an upkeep of the history did. Partitions are given as the names of their tables, with
// the schema.
type Upkept struct {
	// Busy is true if another process does the upkeep. Then this one did nothing.
	Busy bool `json:"busy"`
	// Made are the partitions that are new.
	Made []string `json:"made"`
	// RolledUp are rows of hours and days that were written.
	RolledUp int64 `json:"rolled_up"`
	// Deleted are rows of metrics, usage and writers.
	Deleted int64 `json:"deleted"`
	// Detached are partitions that were made tables of their own, the step before they are
	// dropped.
	Detached []string `json:"detached"`
	// Dropped are partitions that were deleted.
	Dropped []string `json:"dropped"`
	// Skipped are partitions that are in use, and by whom.
	Skipped []string `json:"skipped"`
}

// IsNothing reports whether nothing was done.
func (u *Upkept) IsNothing() bool {
	return !u.Busy && u.RolledUp == 0 && u.Deleted == 0 && len(u.Made)+len(u.Detached)+len(u.Dropped)+len(u.Skipped) == 0
}

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
	r, err := history.Upkeep(ctx, db, now)
	if err != nil {
		err = d.failure(err)
	}
	return Upkept{
		Busy: r.Busy, Made: orNone(r.Made), RolledUp: r.RolledUp, Deleted: r.Deleted,
		Detached: orNone(r.Detached), Dropped: orNone(r.Dropped), Skipped: orNone(r.Skipped),
	}, err
}

// orNone is a list that is [] in JSON if it is empty.
func orNone(list []string) []string { return append([]string{}, list...) }
