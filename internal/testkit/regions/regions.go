// Package regions makes regions in tests, with the SQL of docs/regions.md as it stands.
package regions

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// publisher is the DSN in the document.
const publisher = "postgres://replicator@home/limits"

// recipes are the blocks of SQL in the document: that for the publisher, and that for the region.
func recipes() (publish, subscribe string, err error) {
	folder, err := os.Getwd() // that of the test, somewhere in the repository
	if err != nil {
		return "", "", err
	}
	var text []byte
	for text == nil {
		if text, err = os.ReadFile(filepath.Join(folder, "docs", "regions.md")); err != nil && folder == filepath.Dir(folder) {
			return "", "", err
		}
		folder = filepath.Dir(folder)
	}
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 2 || !strings.Contains(blocks[1][1], publisher) {
		return "", "", errors.New("docs/regions.md must have the SQL of the publisher and of the region")
	}
	return blocks[0][1], blocks[1][1], nil
}

// Publish publishes the policy of a database.
func Publish(ctx context.Context, home *pgx.Conn) error {
	publish, _, err := recipes()
	if err != nil {
		return err
	}
	_, err = home.Exec(ctx, publish, pgx.QueryExecModeSimpleProtocol)
	return err
}

// Subscribe makes a database the region eu of a publisher, a DSN. again ends the subscription that it has.
func Subscribe(ctx context.Context, region *pgx.Conn, dsn string, again bool) error {
	_, subscribe, err := recipes()
	if err != nil {
		return err
	}
	if again {
		if _, err := region.Exec(ctx, "DROP SUBSCRIPTION rate_limit_policy_eu"); err != nil {
			return err
		}
	}
	for _, command := range strings.SplitAfter(strings.Replace(subscribe, publisher, dsn, 1), "\n") {
		for tries := 0; ; tries++ {
			_, err := region.Exec(ctx, command, pgx.QueryExecModeSimpleProtocol)
			var failed *pgconn.PgError
			const lockNotAvailable = "55P03"
			if errors.As(err, &failed) && failed.Code == lockNotAvailable && tries < 20 {
				time.Sleep(200 * time.Millisecond)
				continue
			}
			if err != nil {
				return err
			}
			break
		}
	}
	return nil
}
