// SPDX-License-Identifier: MIT
// Shared by the files of src/io.
#ifndef ISO_EVENT_LOG_H
#define ISO_EVENT_LOG_H

#include <stddef.h>
#include <stdint.h>

// CRC-32C (Castagnoli, RFC 3720 appendix B.4).
uint32_t iso__crc32c(const void *data, size_t bytes);

// The number of bytes of the UTF-8 sequence at `from`; 0: it is none.
int iso__utf8_length(const unsigned char *from);

#endif
