package admin

import (
	"context"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

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
