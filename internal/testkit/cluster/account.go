package cluster

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the account that runs the server. It is the account of this process, except that root uses
// another account, because Postgres refuses to run as root.
type account struct {
	name     string
	uid, gid int
	foreign  bool // whether it is not the account of this process
}

// serverAccount returns the account for a cluster with its data in the folder data. Root uses the owner of
// existing data, or else the account "postgres" that packages create, or else "nobody".
func serverAccount(data string) (account, error) {
	if os.Geteuid() != 0 {
		return account{name: "this account", uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	if uid, gid, ok := owner(data); ok && uid != 0 {
		return account{name: "uid " + strconv.Itoa(uid), uid: uid, gid: gid, foreign: true}, nil
	}
	for _, name := range []string{"postgres", "_postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		gid, gidErr := strconv.Atoi(u.Gid)
		// On macOS, nobody has the uid -2.
		if errors.Join(err, gidErr) == nil && uid > 0 {
			return account{name: name, uid: uid, gid: gid, foreign: true}, nil
		}
	}
	return account{},
		errors.New("cluster: Postgres does not run as root, and there is no account \"postgres\" or " +
			"\"nobody\" to run it")
}

// attributes returns attributes that run a process as the account, in its own process group, which Ctrl-C in
// a terminal does not reach.
func (a account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a.foreign {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

// chown makes the account the owner of a file or folder.
func (a account) chown(path string) error {
	if !a.foreign {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// canUse reports whether the account may write into the folder. The account then also has access to every
// folder above.
func (a account) canUse(folder string) bool {
	cmd := exec.Command("/bin/sh", "-c", `cd "$1" && test -w .`, "sh", folder)
	cmd.Dir = "/"
	cmd.SysProcAttr = a.attributes()
	return cmd.Run() == nil
}

// chooseFolder returns a folder for servers, and their account. The folder is dir, or, if the account cannot
// use dir, a folder below the machine's temporary folder. The name of the latter depends on dir, so that the
// next run finds it.
func chooseFolder(dir string) (string, account, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", account{}, fmt.Errorf("cluster: %w", err)
	}
	digest := sha256.Sum256([]byte(dir))
	name := fmt.Sprintf("pg-ratelimit-%d-%x", os.Geteuid(), digest[:6])
	var errs []error
	for _, candidate := range []string{dir, filepath.Join(os.TempDir(), name), filepath.Join("/tmp", name)} {
		a, err := serverAccount(filepath.Join(candidate, "data"))
		if err != nil {
			return "", account{}, err
		}
		if err = a.makeFolder(candidate); err == nil {
			return candidate, a, nil
		}
		errs = append(errs, err)
	}
	return "", account{}, fmt.Errorf("cluster: no folder for servers: %w", errors.Join(errs...))
}

// makeFolder creates a folder that only the account can use, or changes the owner of an existing one.
func (a account) makeFolder(folder string) error {
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return err
	}
	isNew := true
	if err := os.Mkdir(folder, 0o700); errors.Is(err, os.ErrExist) {
		isNew = false
	} else if err != nil {
		return err
	}
	info, err := os.Lstat(folder)
	if err != nil {
		return err
	}
	uid, _, _ := owner(folder)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is not a folder", folder)
	case uid != a.uid && uid != os.Geteuid():
		// Another user may have created it in /tmp.
		return fmt.Errorf("%s belongs to uid %d, must belong to uid %d", folder, uid, a.uid)
	}
	if err := a.chown(folder); err != nil {
		return err
	}
	if a.canUse(folder) {
		return nil
	}
	if isNew {
		_ = os.Remove(folder)
	}
	return fmt.Errorf("%s cannot be used by %s", folder, a.name)
}

// placeTemporary creates a temporary folder that the account can use, and sets the cluster's folder.
func (c *Cluster) placeTemporary() error {
	a, err := serverAccount("")
	if err != nil {
		return err
	}
	var parents []string
	if c.opts.Config["fsync"] == "off" { // the data does not survive a crash anyway
		parents = memoryFolders()
	}
	dir, err := a.temporaryFolder("pgrl-", parents...)
	if err != nil {
		return err
	}
	c.dir, c.account = dir, a
	return nil
}

// memoryFolders returns a folder with files in memory, if this machine has one with space for the data of
// several test processes. If TMPDIR is set, it returns no folder.
func memoryFolders() []string {
	const folder, space = "/dev/shm", 4 << 30
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(folder, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < space {
		return nil
	}
	return []string{folder}
}

// makeSocketDir creates the folder for the server's Unix socket. It is not in the cluster's folder, because
// the path of a socket has at most about a hundred bytes.
func (c *Cluster) makeSocketDir() error {
	dir, err := c.account.temporaryFolder("pgrl-s-")
	if err != nil {
		return err
	}
	c.sockets = dir
	return nil
}

// maxTemporaryPath leaves space for "/.s.PGSQL.12345.lock" in a socket's path, which has at most 104 bytes on
// macOS, the smallest bound.
const maxTemporaryPath = 80

// temporaryFolder creates a folder with a short path that the account can use, in the first suitable one of
// parents, or else in the machine's temporary folder.
func (a account) temporaryFolder(prefix string, parents ...string) (string, error) {
	var errs []error
	for _, parent := range append(parents, os.TempDir(), "/tmp") {
		dir, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err = a.chown(dir); err == nil && !a.canUse(dir) {
			err = fmt.Errorf("%s cannot be used by %s", dir, a.name)
		}
		if err == nil && len(dir) > maxTemporaryPath {
			err = fmt.Errorf("%s is too long for a socket", dir)
		}
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err, os.RemoveAll(dir))
	}
	return "", fmt.Errorf("cluster: no temporary folder: %w", errors.Join(errs...))
}

// owner returns the owner of a file or folder. It does not follow a link.
func owner(path string) (uid, gid int, ok bool) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, 0, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int(stat.Uid), int(stat.Gid), true
}
