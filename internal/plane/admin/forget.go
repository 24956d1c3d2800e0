package admin

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Person names the user, the client or the key whose rows Forget deletes. One field is set.
type Person struct {
	User string
	// Address is that of a client. Of IPv6, all addresses of its /64 are one client.
	Address netip.Addr
	// Key is an API key, or the key of a counter. It is not stored.
	Key   string
	KeyID int64 // an API key by its id
}

// Forgetting is what Forget has deleted, or would delete.
type Forgetting struct {
	DryRun bool `json:"dry_run"`
	// Tables have a row for each table, and how many of its rows are of the person.
	Tables []Row `json:"tables"`
	// Notes are about what is left.
	Notes []string `json:"notes"`
}

// Forget deletes all rows that are about a person, in one transaction: of the counters, the
// audit log, the usage, the overrides and the bans, and with account also of the users and the
// API keys. A dry run only counts them.
func (d *Database) Forget(ctx context.Context, p *Person, account, dryRun bool) (*Forgetting, error) {
	key, address := p.Key, ""
	if !utf8.ValidString(key) || strings.IndexByte(key, 0) >= 0 {
		key = ratelimit.DigestKey(key) // as it is stored
	}
	if p.Address.IsValid() {
		address = p.Address.Unmap().WithZone("").String()
	}
	f := &Forgetting{DryRun: dryRun, Tables: []Row{}, Notes: []string{}}
	var found []Row
	err := d.together(ctx, func(w *work) {
		found = w.ask(`SELECT name AS "table", deleted AS rows, kept FROM rate_limit_forget_person(nullif($1::text, ''), nullif($2::bigint, 0),
	nullif($3::text, ''), nullif($4::text, '')::inet, $5, $6)`, p.User, p.KeyID, key, address, account, dryRun)
	})
	if err != nil {
		return nil, err
	}
	for _, t := range found {
		table, kept := t.Text("table"), t.Get("kept").(int64)
		isChanges := table == "rate_limit_changes"
		if !isChanges {
			f.Tables = append(f.Tables, t.only("table", "rows"))
		}
		switch {
		case kept > 0 && isChanges:
			f.Notes = append(f.Notes, fmt.Sprintf("%d lines of rate_limit_changes have the user, the API key or the network. Proxies need them, and delete them after 30 days.", kept))
		case kept > 0:
			f.Notes = append(f.Notes, fmt.Sprintf("%d counters of %s stay: requests that run hold slots of them. Run the command again when they have ended.", kept, table))
		}
	}
	live, err := d.LiveProxies(ctx)
	if err == nil && len(live) > 0 {
		f.Notes = append(f.Notes, "Proxies run: "+strings.Join(live, ", ")+". They may write what they have in memory, which are the records of some seconds and leased units: run the command again after a minute.")
	}
	return f, err
}
