package conformance

import (
	"context"
	"errors"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// latin1 makes a database in an old encoding and returns its DSN.
func latin1(t testing.TB, open openDB) string {
	server := cluster.Private(t, cluster.Options{})
	admin := open(t, server.DSN("postgres"))
	defer admin.Close()
	if err := admin.Exec(context.Background(), "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"); err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	address.Path = "/latin"
	return address.String()
}

// testEncoding has a database in an old encoding: text in characters that it has
// is stored in that encoding, and a transaction with others fails alone.
func testEncoding(t *testing.T, open openDB) {
	d := &db{t: t, DB: open(t, latin1(t, open))}
	defer d.Close()
	d.exec("CREATE TABLE t (key text)")
	insert := "INSERT INTO t SELECT unnest($1::text[]) RETURNING key"
	for i := 0; i < 2; i++ {
		good, first, odd := statement(insert, []string{"é"}), statement(insert, []string{"a"}), statement(insert, []string{"b", "\U0001F600"})
		err := d.try(append(transaction(first, odd), good)...)
		if err != nil || good.Err != nil || odd.Code != "22P05" || !errors.Is(first.Err, postgres.ErrRolledBack) {
			t.Errorf("%v: %v; %v; %v", err, first.Err, odd.Err, good.Err)
		}
		if !equal(cells(t, good), "é") {
			t.Errorf("é comes back as %q", good.Result)
		}
	}
	if got := d.cells("SELECT encode(convert_to(key, 'LATIN1'), 'hex') FROM t"); !equal(got, "e9", "e9") {
		t.Errorf("é is stored as %q", got)
	}
}

// StoreInLatin1 runs a store on a database in an old encoding: calls for a key in
// characters that the database does not have fail, and no others.
func StoreInLatin1(t *testing.T, open func(t testing.TB, dsn string) postgres.DB, openStore func(t testing.TB, dsn string) ratelimit.Store) {
	dsn := latin1(t, open)
	store := openStore(t, dsn)
	defer store.Close()
	limit := &ratelimit.Limit{Prefix: "p", Events: 1000000, Window: time.Hour}
	take := func(key string) error {
		return store.Take(context.Background(), timeout, []ratelimit.Hit{{Limit: limit, Key: key, Cost: 1}}, make([]ratelimit.Decision, 1))
	}
	if err := take("é"); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for i := 0; i < 8; i++ {
		group.Add(1)
		go func(odd bool) {
			defer group.Done()
			key := "plain"
			if odd {
				key = "\U0001F600"
			}
			for j := 0; j < 50; j++ {
				if err := take(key); (err != nil) != odd {
					t.Errorf("%s: %v", key, err)
					return
				}
			}
		}(i%2 == 1)
	}
	group.Wait()
	d := &db{t: t, DB: open(t, dsn)}
	defer d.Close()
	if got := d.cells("SELECT key || ' ' || count FROM rate_limit_ephemeral ORDER BY key"); !equal(got, "plain 200", "é 1") {
		t.Errorf("the table holds %q", got)
	}
}
