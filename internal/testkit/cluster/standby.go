package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
)

// Follow stops the server, replaces its data by a copy of primary's data, and starts it as a standby of
// primary. The primary's Options.HBA must allow replication.
func (c *Cluster) Follow(ctx context.Context, primary *Cluster) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.stopServer(); err != nil {
		return err
	}
	if err := c.prepare(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(c.DataDir()); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	cmd := c.command(ctx, "pg_basebackup", "-D", c.DataDir(), "-R", "-X", "stream", "-c", "fast", "--no-sync",
		"-d", fmt.Sprintf("host=127.0.0.1 port=%d user=postgres", primary.port))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cluster: pg_basebackup: %w: %s", err, bytes.TrimSpace(out))
	}
	return c.launch(ctx)
}
