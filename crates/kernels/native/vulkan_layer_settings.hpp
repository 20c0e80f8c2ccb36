// Included before everything else in Vulkan's kernels. They name types of VK_EXT_layer_settings, which Debian 12's headers
// (1.3.239) do not have yet, though they use them only with a validation layer. These have the layout that the
// extension's specification gives them.
#pragma once

#include <vulkan/vulkan_core.h>

#ifndef VK_EXT_layer_settings
#include <cstdint>
#include <vector>

namespace vk {

enum class LayerSettingTypeEXT : int32_t { eBool32 = 0 };

struct LayerSettingEXT {
    const char * layer;
    const char * setting;
    LayerSettingTypeEXT type;
    uint32_t value_count;
    const void * values;
};

struct LayerSettingsCreateInfoEXT {
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & all)
        : setting_count(static_cast<uint32_t>(all.size())), settings(all.data()) {}

    int32_t structure_type = 1000496000; // VK_STRUCTURE_TYPE_LAYER_SETTINGS_CREATE_INFO_EXT
    const void * next = nullptr;
    uint32_t setting_count;
    const LayerSettingEXT * settings;
};

} // namespace vk
#endif
