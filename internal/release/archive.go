package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// writeTarGz writes a tar.gz. The keys of files are names below folder in the archive, and the values are the
// paths of the data. All entries have the same modification time.
func writeTarGz(w io.Writer, folder string, files map[string]string, modified time.Time) error {
	compressed, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		data, err := os.ReadFile(files[name])
		if err != nil {
			return err
		}
		header := &tar.Header{Name: folder + "/" + name, Mode: mode(name), Size: int64(len(data)),
			ModTime: modified, Format: tar.FormatPAX}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(data); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}

// writeZip is like writeTarGz for a zip archive, which Windows users expect.
func writeZip(w io.Writer, folder string, files map[string]string, modified time.Time) error {
	archive := zip.NewWriter(w)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		data, err := os.ReadFile(files[name])
		if err != nil {
			return err
		}
		header := &zip.FileHeader{Name: folder + "/" + name, Method: zip.Deflate, Modified: modified}
		header.SetMode(os.FileMode(mode(name)))
		file, err := archive.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := file.Write(data); err != nil {
			return err
		}
	}
	return archive.Close()
}

// mode returns the permissions of a file: programs can be run.
func mode(name string) int64 {
	if strings.HasPrefix(name, "caddy") || strings.HasPrefix(name, "pg-ratelimit") {
		return 0o755
	}
	return 0o644
}
