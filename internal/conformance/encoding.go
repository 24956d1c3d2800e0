package conformance

import (
	"context"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// testEncoding has a database in an old encoding: a key in characters that it has
// is the same row for all, and one that it does not have fails alone.
func testEncoding(t *testing.T, open func(t testing.TB, dsn string) ratelimit.DB) {
	server := cluster.Private(t, cluster.Options{})
	admin := &db{t: t, DB: open(t, server.DSN("postgres"))}
	defer admin.Close()
	admin.exec("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
	address, err := url.Parse(server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	address.Path = "/latin"
	store := ratelimit.NewPostgres(open(t, address.String()), ratelimit.PostgresOptions{Report: func(err error) { t.Error(err) }})
	defer store.Close()
	limit := &ratelimit.Limit{Prefix: "p", Events: 1000000, Window: time.Hour}
	take := func(key string) error {
		return store.Take(context.Background(), timeout, []ratelimit.Hit{{Limit: limit, Key: key, Cost: 1}}, make([]ratelimit.Decision, 1))
	}
	if err := take("é"); err != nil {
		t.Fatal(err)
	}
	latin := &db{t: t, DB: open(t, address.String())}
	defer latin.Close()
	if got := latin.cell("SELECT encode(convert_to(key, 'LATIN1'), 'hex') FROM rate_limit_ephemeral"); got != "e9" {
		t.Errorf("é is stored as %s", got)
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
	if got := latin.cell("SELECT count::text FROM rate_limit_ephemeral WHERE key = 'plain'"); got != "200" {
		t.Errorf("plain has %s hits, want 200", got)
	}
}
