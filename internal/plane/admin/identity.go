package admin

import (
	"context"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// identity returns what proxies know of the sender of a request; nil for nobody.
func (d *Database) identity(ctx context.Context, db postgres.DB, r *Request) (*policy.Identity, error) {
	var id *policy.Identity
	var err error
	switch {
	case r.Key != "":
		id, err = policy.ReadKey(db, policy.Digest(r.Key))
	case r.KeyID != 0:
		var found [][]byte
		if found, err = values[[]byte](ctx, d, "SELECT digest FROM rate_limit_api_keys WHERE id = $1", r.KeyID); err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, noKey(r.KeyID)
		}
		var digest [32]byte
		copy(digest[:], found[0])
		id, err = policy.ReadKey(db, digest)
	case r.User != "":
		id, err = policy.ReadUser(db, r.User)
	}
	if err != nil {
		return nil, d.failure(err)
	}
	return id, nil
}
