package page

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func listBans(ctx context.Context, db *admin.Database, _ *struct{}) (any, error) {
	bans, err := db.Bans(ctx)
	return banList(bans), err
}

// periodFields are a time that is asked about, and how many rows are wanted.
type periodFields struct {
	Since string `json:"since"`
	Until string `json:"until"`
	N     string `json:"n"`
}

func (f *periodFields) count(unset, most int) (int, error) {
	n, err := strconv.Atoi(cmp.Or(f.N, "0"))
	if err != nil || n < 0 || n > most {
		return 0, &ratelimit.FieldError{Field: "n", Value: f.N, Want: fmt.Sprintf("a whole number from 1 to %d", most)}
	}
	return cmp.Or(n, unset), nil
}

func (f *periodFields) period(ctx context.Context, db *admin.Database, unset string) (admin.Period, error) {
	now, err := db.Now(ctx)
	if err != nil {
		return admin.Period{}, err
	}
	return admin.ParsePeriod(cmp.Or(f.Since, unset), f.Until, now)
}

func listChanges(ctx context.Context, db *admin.Database, f *periodFields) (any, error) {
	p, err := f.period(ctx, db, "24h")
	if err != nil {
		return nil, err
	}
	most, err := f.count(100, 1000)
	if err != nil {
		return nil, err
	}
	changes, err := db.Ask(ctx, changesSQL, p.From, p.Until, int64(most), nil)
	return map[string]any{"changes": changes}, err
}

func usageOfUser(ctx context.Context, db *admin.Database, f *struct {
	User  string `json:"user"`
	Month string `json:"month"`
}) (any, error) {
	if f.User == "" {
		return nil, &ratelimit.FieldError{Field: "user", Want: "the name of a user"}
	}
	p, err := admin.ParseMonth("month", f.Month, time.Now())
	if err != nil {
		return nil, err
	}
	return db.UsageOf(ctx, f.User, p)
}

func counters(ctx context.Context, db *admin.Database, f *struct {
	Prefix string `json:"prefix"`
	Key    string `json:"key"`
}) (any, error) {
	found, err := db.Counters(ctx, f.Prefix, f.Key)
	return map[string]any{"counters": found}, err
}
