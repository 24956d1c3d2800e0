// Command release builds the archives of a release: one for each platform with Caddy and the program
// pg-ratelimit, the list of their modules, and the licenses of these modules; one with the plugin for
// Traefik; and the checksums of all. `make release` runs it after the tests.
//
// The archives of a commit are reproducible: builds with the same version of Go produce the same bytes.
package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
)

// allPlatforms lists the platforms of a release.
const allPlatforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64"

// extraFiles lists the files of the repository that each archive contains.
var extraFiles = []string{"CHANGELOG.md", "Caddyfile.example", "LICENSE", "README.md"}

func main() {
	out := flag.String("out", "bin/release", "the folder of the archives, which is emptied")
	platforms := flag.String("platforms", allPlatforms, "the platforms to build for, with commas between")
	sql := flag.Bool("schema", false, "print the SQL that makes the tables, and build nothing")
	flag.Parse()
	if *sql {
		_, _ = os.Stdout.WriteString(schema.File)
		return
	}
	if err := release(*out, strings.Split(*platforms, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release builds the archives of the repository in the current folder, if its commit can be released.
func release(out string, platforms []string) error {
	if err := checkReleasable(); err != nil {
		return err
	}
	committed, err := git("log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(committed, 10, 64)
	if err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(out), os.MkdirAll(out, 0o755)); err != nil {
		return err
	}
	var names []string
	for _, platform := range platforms {
		name, err := build(out, platform, time.Unix(seconds, 0).UTC())
		if err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
		fmt.Println(filepath.Join(out, name))
		names = append(names, name)
	}
	name, err := packPlugin(out, time.Unix(seconds, 0).UTC())
	if err != nil {
		return err
	}
	fmt.Println(filepath.Join(out, name))
	return writeChecksums(out, append(names, name))
}

// checkReleasable returns an error for uncommitted changes and for wrong tags. Tests check the rest.
func checkReleasable() error {
	changed, err := git("status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("commit these files before a release:\n%s", changed)
	}
	tags, err := git("tag", "--points-at", "HEAD", "--list", "v*")
	if err != nil {
		return err
	}
	if tags != "" && !slices.Contains(strings.Fields(tags), host.Version) {
		return fmt.Errorf("the commit has the tag %s, and internal/proxy/host/version.go has %s",
			tags, host.Version)
	}
	if tags, err = git("tag"); err != nil {
		return err
	}
	return checkTags(strings.Fields(tags))
}

// checkTags returns an error for a tag that is not a version. Traefik's catalog refuses a repository with
// such a tag.
func checkTags(tags []string) error {
	for _, tag := range tags {
		if !regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$`).MatchString(tag) {
			return fmt.Errorf("the tag %s is not like v1.2.3: Traefik's catalog refuses a repository "+
				"with such a tag; delete it", tag)
		}
	}
	return nil
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// build creates the archive of a platform in the folder out, and returns the archive's name.
func build(out, platform string, committed time.Time) (string, error) {
	system, processor, ok := strings.Cut(platform, "/")
	if !ok {
		return "", errors.New("a platform must be a system and a processor, such as linux/amd64")
	}
	dir, err := os.MkdirTemp("", "pg-ratelimit-release-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	files := map[string]string{}
	ending := map[bool]string{true: ".exe"}[system == "windows"]
	for name, source := range map[string]string{"caddy": ".", "pg-ratelimit": module +
		"/admin/cmd/pg-ratelimit"} {
		files[name+ending] = filepath.Join(dir, name+ending)
		if err := compile(files[name+ending], source, system, processor); err != nil {
			return "", err
		}
	}
	for _, name := range extraFiles {
		files[name] = name
	}
	for name, write := range map[string]func(io.Writer, string) error{"DEPENDENCIES.txt": writeDependencies,
		"LICENSES.txt": writeLicenses, "schema.sql": writeSchema} {
		path := filepath.Join(dir, name)
		if err := writeFile(path, func(w io.Writer) error {
			return write(w, files["caddy"+ending]) // pg-ratelimit has no module that Caddy lacks
		}); err != nil {
			return "", err
		}
		files[name] = path
	}
	folder := fmt.Sprintf("pg-ratelimit_%s_%s_%s", strings.TrimPrefix(host.Version, "v"),
		system, processor)
	if system == "windows" {
		return folder + ".zip", writeFile(filepath.Join(out, folder+".zip"),
			func(w io.Writer) error { return writeZip(w, folder, files, committed) })
	}
	return folder + ".tar.gz", writeFile(filepath.Join(out, folder+".tar.gz"),
		func(w io.Writer) error { return writeTarGz(w, folder, files, committed) })
}

// compile builds a package, in the versions of the module xcaddy. The program must not depend on this
// machine: it has no path, no settings of Go, and no identifier of the build.
func compile(program, source, system, processor string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=",
		"-tags=nobadger,nomysql,nopgx", "-o", program, source)
	cmd.Dir = "xcaddy"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+processor, "GOAMD64=v1",
		"GOARM64=v8.0", "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, output)
	}
	return nil
}

// packPlugin writes the archive of the plugin in the folder out, and returns the archive's name. Unpacked
// where Traefik runs, it is a local plugin.
func packPlugin(out string, committed time.Time) (string, error) {
	const each = "{{range .GoFiles}}{{$.ImportPath}}/{{.}}\t{{$.Dir}}/{{.}}\n{{end}}{{end}}"
	list, err := exec.Command("go", "list", "-deps", "-f",
		`{{if and .Module (eq .Module.Path "`+module+`")}}`+each, "./traefikplugin").Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w", err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(list)) {
		name, path, _ := strings.Cut(strings.TrimSpace(line), "\t")
		files["src/"+name] = path
	}
	for _, name := range []string{".traefik.yml", "LICENSE"} {
		files["src/"+module+"/"+name] = name
	}
	name := fmt.Sprintf("pg-ratelimit-traefik_%s.zip", strings.TrimPrefix(host.Version, "v"))
	return name, writeFile(filepath.Join(out, name),
		func(w io.Writer) error { return writeZip(w, "plugins-local", files, committed) })
}

// writeSchema writes the SQL that creates the tables.
func writeSchema(w io.Writer, _ string) error {
	_, err := io.WriteString(w, schema.File)
	return err
}

// writeChecksums writes SHA256SUMS, for sha256sum -c.
func writeChecksums(out string, names []string) error {
	slices.Sort(names)
	return writeFile(filepath.Join(out, "SHA256SUMS"), func(w io.Writer) error {
		for _, name := range names {
			archive, err := os.ReadFile(filepath.Join(out, name))
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "%x  %s\n", sha256.Sum256(archive), name); err != nil {
				return err
			}
		}
		return nil
	})
}

// writeFile creates the file at path, and calls write to fill it.
func writeFile(path string, write func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}
