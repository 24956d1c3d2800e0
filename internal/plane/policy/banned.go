package policy

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// bannedSenders are the users and API keys that are banned, for requests of senders that are
// not remembered and cannot be looked up. The bans of those that are remembered are in their
// identities.
type bannedSenders struct {
	byName map[string]*Identity // unread, with their bans; by name in the cache
	all    bool                 // there are no others
}

// bannedMost bounds the users and keys. The bans of the others are found by looking them up.
const bannedMost = 100000

// keysPause is the time between two attempts to read the banned keys that fail.
const keysPause = 10 * time.Second

// bannedUsersSQL and bannedKeysSQL return one row more than bannedMost at most. The keys are
// those that are banned, and those of banned users. They are read apart: while the table of
// API keys is locked, all else must still be obeyed.
var bannedUsersSQL = `SELECT b.user_id, coalesce((` + endSQL("b.until") + `)::text, ''), coalesce(b.reason, '')
FROM rate_limit_bans b WHERE b.user_id IS NOT NULL AND b.until > now() ORDER BY 1 LIMIT 100001`

var bannedKeysSQL = `SELECT encode(k.digest, 'hex'), k.id::text, k.user_id, b.what, coalesce((` + endSQL("b.until") + `)::text, ''), coalesce(b.reason, '')
FROM (SELECT 'key' AS what, k.id, b.until, b.reason FROM rate_limit_bans b JOIN rate_limit_api_keys k ON k.id = b.key_id
	UNION ALL SELECT 'user', k.id, b.until, b.reason FROM rate_limit_bans b JOIN rate_limit_api_keys k ON k.user_id = b.user_id) AS b
JOIN rate_limit_api_keys k ON k.id = b.id
WHERE b.until > now() AND coalesce(k.revoked_at > now(), true) AND coalesce(k.expires_at > now(), true) ORDER BY 1, 4 LIMIT 100001`

// readBannedKeys reads the banned keys into rows. After a failure they stay as they are for a
// while.
func (p *Policy) readBannedKeys(ctx context.Context, now time.Time, rows *savedRows) (done bool) {
	if now.Before(p.keysAt) {
		return false
	}
	within, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	keys, err := runOne(within, p.db, &postgres.Statement{SQL: bannedKeysSQL}, 6)
	if err != nil {
		p.keysAt = now.Add(keysPause)
		p.report("banned keys", fmt.Errorf("reading the banned API keys: %w", err))
		return false
	}
	p.report("banned keys", nil)
	rows.Keys = keys
	return true
}

// newBannedSenders decodes the rows of bannedUsersSQL and bannedKeysSQL.
func newBannedSenders(users, keys []string) (*bannedSenders, error) {
	if len(users)%3 != 0 || len(keys)%6 != 0 {
		return nil, errColumns
	}
	b := &bannedSenders{byName: make(map[string]*Identity, len(users)/3+len(keys)/6), all: true}
	for i := 0; i < len(users); i += 3 {
		id := &Identity{User: users[i]}
		if err := b.add(id, Ban{User: id.User, Reason: users[i+2]}, users[i+1]); err != nil {
			return nil, err
		}
	}
	for i := 0; i < len(keys); i += 6 {
		number, err := strconv.ParseInt(keys[i+1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the ban of an API key: %w", err)
		}
		id := &Identity{Digest: digestOf(keys[i]), KeyID: number, User: keys[i+2]}
		ban := Ban{KeyID: number, Reason: keys[i+5]}
		if keys[i+3] == "user" {
			ban.User = id.User
			ban.KeyID = 0
		}
		if err := b.add(id, ban, keys[i+4]); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// add adds a ban of a sender.
func (b *bannedSenders) add(id *Identity, ban Ban, until string) error {
	if until != "" {
		end, err := strconv.ParseInt(until, 10, 64)
		if err != nil {
			return fmt.Errorf("the ban of a user or an API key: %w", err)
		}
		ban.Until = time.UnixMicro(end)
	}
	name := nameOfIdentity(id)
	known := b.byName[name]
	switch {
	case known != nil:
		known.Bans = append(known.Bans, ban)
	case len(b.byName) >= bannedMost:
		b.all = false
	default:
		id.Unread = true
		id.Bans = []Ban{ban}
		b.byName[name] = id
	}
	return nil
}

// find returns the identity of a sender that is not looked up, with the bans that are known.
func (b *bannedSenders) find(s sender) *Identity {
	if id := b.byName[s.name()]; id != nil {
		return id
	}
	return &Identity{Digest: s.digest, User: s.user, Unread: true}
}

// concern reports whether changes of users or API keys may change which keys are banned.
func (b *bannedSenders) concern(found changes) bool {
	for _, user := range found.users {
		if b.byName[NameOfUser(user)] != nil {
			return true
		}
	}
	for _, digest := range found.digests {
		if b.byName[NameOfKey(digestOf(digest))] != nil {
			return true
		}
	}
	return false
}

// incomplete is an error if there are more bans than are remembered.
func (b *bannedSenders) incomplete() error {
	if b.all {
		return nil
	}
	return fmt.Errorf("more than %d users and API keys are banned: the bans of the others hold only while the database answers", bannedMost)
}
