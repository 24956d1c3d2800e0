package cluster

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// settingsFile is the file that the server reads after postgresql.conf. Each start writes it.
const settingsFile = "pg-ratelimit.conf"

const trustEverybody = `local all all trust
host all all 127.0.0.1/32 trust
host all all ::1/128 trust
`

// makeDataDir creates the data folder unless it exists. The folder has a temporary name until it is complete,
// so an interrupted start leaves nothing that looks like a cluster.
func (c *Cluster) makeDataDir(ctx context.Context) error {
	version, err := c.version(ctx)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(c.DataDir(), "PG_VERSION"))
	if err == nil {
		if have := strings.TrimSpace(string(text)); have != version {
			return fmt.Errorf("cluster: %s was made by Postgres %s and %s is Postgres %s: remove the "+
				"folder, or set PG_BINDIR to the programs of Postgres %[2]s",
				c.DataDir(), have, c.bin, version)
		}
		return nil
	}
	unfinished := c.DataDir() + ".new"
	if err := os.RemoveAll(unfinished); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	args := []string{"-D", unfinished, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"}
	if c.opts.Config["fsync"] == "off" {
		args = append(args, "--no-sync")
	}
	cmd := c.command(ctx, "initdb", args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cluster: initdb: %w", err)
	}
	if err := c.leash.Hold(cmd.Process.Pid); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("cluster: initdb: %w: %s", err, strings.TrimSpace(out.String()))
	}
	if err := c.leash.Hold(0); err != nil {
		return err
	}
	conf, err := os.OpenFile(filepath.Join(unfinished, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	defer conf.Close()
	if _, err := fmt.Fprintf(conf, "\ninclude '%s'\n", settingsFile); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	if err := os.Rename(unfinished, c.DataDir()); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}

// command returns a command that runs one of the server's programs as the server's account, in its folder,
// without the caller's variables PG…, LC_… and LANG….
func (c *Cluster) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, program), args...)
	cmd.Dir = c.dir
	cmd.SysProcAttr = c.account.attributes()
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PG") && !strings.HasPrefix(variable, "LC_") &&
			!strings.HasPrefix(variable, "LANG") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(append(cmd.Env, "LC_ALL=C", "TZ=UTC"), c.opts.Env...)
	return cmd
}

var versionNumber = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// version returns the server's major version. It fails if the account cannot run the server.
func (c *Cluster) version(ctx context.Context) (string, error) {
	out, err := c.command(ctx, "postgres", "--version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cluster: %s cannot run %s/postgres: %w: %s", c.account.name, c.bin, err,
			bytes.TrimSpace(out))
	}
	found := versionNumber.FindSubmatch(out)
	if found == nil {
		return "", fmt.Errorf("cluster: %s/postgres --version says %q, must name a version", c.bin, out)
	}
	return string(found[1]), nil
}

// configure writes the settings, pg_hba.conf and the caller's files.
func (c *Cluster) configure() error {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(c.port),
		"unix_socket_directories": c.sockets,
		"timezone":                "UTC",
		"log_timezone":            "UTC",
	}
	maps.Copy(settings, c.opts.Config)
	hba := c.opts.HBA
	if hba == "" {
		hba = trustEverybody
	}
	files := map[string][]byte{settingsFile: []byte(settingsText(settings)), "pg_hba.conf": []byte(hba)}
	maps.Copy(files, c.opts.Files)
	for name, content := range files {
		path := filepath.Join(c.DataDir(), name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		if err := c.account.chown(path); err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
	}
	return nil
}

// settingsText formats settings for postgresql.conf, sorted by name.
func settingsText(settings map[string]string) string {
	var lines []string
	for name, value := range settings {
		value = strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(value)
		lines = append(lines, fmt.Sprintf("%s = '%s'\n", name, value))
	}
	sort.Strings(lines)
	return strings.Join(lines, "")
}
