package cluster

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
)

// templates remembers which templates exist. The keys of exist join the server's DSN and the template's name.
var templates = struct {
	sync.Mutex
	exist map[string]bool
}{exist: map[string]bool{}}

// template returns the name of a database to copy, in which the SQL has run. The first process that needs the
// database creates it, and the database stays as long as the server. Without SQL, template returns template0,
// which many processes can copy concurrently because nobody connects to it.
func template(admin, sql string) (string, error) {
	if sql == "" {
		return "template0", nil
	}
	sum := sha256.Sum256([]byte(sql))
	name := fmt.Sprintf("t_template_%x", sum[:8])
	templates.Lock()
	defer templates.Unlock()
	if templates.exist[admin+name] {
		return name, nil
	}
	if err := makeTemplate(admin, name, sql); err != nil {
		return "", fmt.Errorf("cluster: %s: %w", name, err)
	}
	templates.exist[admin+name] = true
	return name, nil
}

// makeTemplate creates a template unless it exists. The database has a temporary name until all of the SQL
// has run.
func makeTemplate(admin, name, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) // which ends the lock
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", name); err != nil {
		return err
	}
	var exists bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)",
		name).Scan(&exists); err != nil || exists {
		return err
	}
	unfinished := name + "_new"
	dsn, err := withDatabase(admin, unfinished)
	if err != nil {
		return err
	}
	for _, step := range []struct{ dsn, sql string }{
		{admin, "DROP DATABASE IF EXISTS " + unfinished + " WITH (FORCE)"},
		{admin, "CREATE DATABASE " + unfinished + " TEMPLATE template0"},
		{dsn, sql},
		{admin, "ALTER DATABASE " + unfinished + " ALLOW_CONNECTIONS false"},
		{admin, "ALTER DATABASE " + unfinished + " RENAME TO " + name},
	} {
		if err := execute(step.dsn, step.sql); err != nil {
			return err
		}
	}
	return nil
}
